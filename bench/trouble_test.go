package bench

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-relay/outbox-relay/internal/load"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
	"github.com/outbox-relay/outbox-relay/relay"
)

// troubleRate is slow enough that each event is claimed on its own: a batch
// would hide what a claim costs.
const troubleRate = 200

// BenchmarkParked measures what parked rows at the head of the table cost those
// behind them: the mean time of a claim, and the latency at 200 events/s, with
// none, with 1,000 and with 100,000.
func BenchmarkParked(b *testing.B) {
	for _, parked := range []int{0, 1000, 100_000} {
		b.Run(fmt.Sprintf("parked=%d", parked), func(b *testing.B) {
			o := newOutbox(b)
			o.park(b, parked)
			registry := prometheus.NewRegistry()
			f := o.startFlow(b, load.NewLedger(), nil)
			r, stop := f.relay(b, func(*relay.Config) {}, relay.WithRegisterer(registry))
			awaitReady(b, r)
			f.warmUp(b)
			before := claims(b, registry)
			f.write(b, f.writer(b, troubleRate, b.N*int(troubleRate*passLength(b).Seconds())))
			f.arrive(b)
			after := claims(b, registry)
			report(b, 1000*(after.GetSampleSum()-before.GetSampleSum())/float64(after.GetSampleCount()-before.GetSampleCount()), "claim-ms")
			f.reportLatency(b, stop)
		})
	}
}

// park puts rows into the table that an earlier relay has set aside.
func (o *outbox) park(b *testing.B, rows int) {
	b.Helper()
	_, err := o.pool.Exec(b.Context(), `WITH parked AS (
		INSERT INTO `+o.table.Sanitize()+` (event_id, aggregate_type, aggregate_id, event_type, payload, topic, partition_key)
		SELECT gen_random_uuid(), 'order', '1', 'order.placed', '{}', $1, 'parked-' || n % 1000 FROM generate_series(1, $2) n
		RETURNING id, event_id, topic, partition_key)
		INSERT INTO outbox_relay_failure (row_id, event_id, topic, partition_key, kind, code, error, attempts, state)
		SELECT id, event_id, topic, partition_key, 'row', 'MESSAGE_TOO_LARGE', 'too large', 1, 'parked' FROM parked`, o.topic, rows)
	if err != nil {
		b.Fatalf("park %d rows: %v", rows, err)
	}
}

// claims is the relay's histogram of claim times.
func claims(b *testing.B, registry *prometheus.Registry) *dto.Histogram {
	b.Helper()
	families, err := registry.Gather()
	if err != nil {
		b.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "outbox_relay_claim_seconds" {
			return family.GetMetric()[0].GetHistogram()
		}
	}
	b.Fatal("the relay does not tell how long its claims take")
	return nil
}

// BenchmarkMissingTopic measures the latency of 160 events/s on four topics,
// beside 40 events/s on a fifth that is there, and that is missing.
func BenchmarkMissingTopic(b *testing.B) {
	for _, missing := range []bool{false, true} {
		b.Run(fmt.Sprintf("missing=%t", missing), func(b *testing.B) {
			o := newOutbox(b)
			more := []string{
				testenv.Topic(b, o.cfg.Brokers, partitions), testenv.Topic(b, o.cfg.Brokers, partitions),
				testenv.Topic(b, o.cfg.Brokers, partitions),
			}
			f := o.startFlow(b, load.NewLedger(), nil, more...)
			r, stop := f.relay(b, func(*relay.Config) {})
			awaitReady(b, r)
			f.warmUp(b)

			fifth := f.writer(b, troubleRate/5, b.N*int(troubleRate/5*passLength(b).Seconds()))
			fifth.Ledger, fifth.KeyPrefix = load.NewLedger(), "fifth-"
			fifth.Topics = []string{"missing." + o.topic}
			if !missing {
				fifth.Topics = []string{testenv.Topic(b, o.cfg.Brokers, partitions)}
			}
			w := f.writer(b, troubleRate*4/5, b.N*int(troubleRate*4/5*passLength(b).Seconds()))
			w.Topics = append(more, o.topic)
			var group errgroup.Group
			group.Go(func() error { return fifth.Run(b.Context()) })
			f.write(b, w)
			if err := group.Wait(); err != nil {
				b.Fatal(err)
			}
			f.reportLatency(b, stop)
		})
	}
}

// BenchmarkRemoval measures the latency at 200 events/s while nothing is removed
// from a table of many published rows, and while the statement of the README
// removes them, BENCH_REMOVAL_RATE rows/s in its batches of 1,000.
func BenchmarkRemoval(b *testing.B) {
	const batch = 1000
	rate := setting(b, "BENCH_REMOVAL_RATE", 20_000)
	for _, removing := range []bool{false, true} {
		b.Run(fmt.Sprintf("removing=%t", removing), func(b *testing.B) {
			o := newOutbox(b)
			seconds := b.N * int(passLength(b).Seconds())
			o.fill(b, nil, backlog{rows: 2 * rate * seconds, keys: 1000, keyPrefix: "old-", topic: o.topic, published: true})
			f := o.startFlow(b, load.NewLedger(), nil)
			r, stop := f.relay(b, func(*relay.Config) {})
			awaitReady(b, r)
			f.warmUp(b)

			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			var removed int64
			var group errgroup.Group
			began := time.Now()
			if removing {
				pace := time.Second * batch / time.Duration(rate)
				group.Go(func() (err error) {
					removed, err = remove(ctx, o.pool, testenv.RemovalStatement(b, "0"), pace)
					return err
				})
			}
			f.write(b, f.writer(b, troubleRate, troubleRate*seconds))
			cancel()
			if err := group.Wait(); err != nil {
				b.Fatalf("remove published rows: %v", err)
			}
			report(b, float64(removed)/time.Since(began).Seconds(), "removed/s")
			f.reportLatency(b, stop)
		})
	}
}

// remove executes the statement once in each pace until ctx ends, and returns how
// many rows it took.
func remove(ctx context.Context, pool *pgxpool.Pool, statement string, pace time.Duration) (rows int64, err error) {
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	for ctx.Err() == nil {
		tag, err := pool.Exec(context.WithoutCancel(ctx), statement)
		if err != nil {
			return rows, err
		}
		rows += tag.RowsAffected()
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
	return rows, nil
}

// BenchmarkOversized measures the latency of 200 events/s beside one that their
// topic does not take, under each policy. It comes when half of them have
// arrived, with a key of theirs, which goes on without it; under the policy block
// its key is one of its own, which must not.
func BenchmarkOversized(b *testing.B) {
	for _, policy := range []relay.Policy{"", relay.Park, relay.Block, relay.DeadLetter} {
		b.Run("policy="+cmp.Or(string(policy), "none"), func(b *testing.B) {
			topic := testenv.Topic(b, testenv.Brokers(b), partitions, "max.message.bytes=20000")
			events := b.N * int(troubleRate*passLength(b).Seconds())
			half := newCountdown(warmUpRows + events/2)
			o := newOutbox(b)
			f := o.startFlow(b, load.NewLedger(), half.arrived, topic)
			r, stop := f.relay(b, func(cfg *relay.Config) {
				cfg.OnPoison, cfg.DLQTopic = cmp.Or(policy, relay.Park), o.topic
			})
			awaitReady(b, r)
			f.warmUp(b)

			w := f.writer(b, troubleRate, events)
			w.Topics = []string{topic}
			var group errgroup.Group
			group.Go(func() error { return w.Run(b.Context()) })
			<-half.over
			if policy != "" {
				key := w.KeyPrefix + "0"
				if policy == relay.Block {
					key = "blocked"
				}
				f.oversize(b, policy, topic, key)
			}
			if err := group.Wait(); err != nil {
				b.Fatal(err)
			}
			f.reportLatency(b, stop)
		})
	}
}

// oversize writes an event that its topic does not take, and one behind it in its
// key, and returns once the policy was applied to them. Their latency does not
// count.
func (f *flow) oversize(b *testing.B, policy relay.Policy, topic, key string) {
	b.Helper()
	ids := testenv.Insert(b, f.pool,
		testenv.Event{Topic: topic, Key: key, Payload: `{"seq": 1, "fill": "` + strings.Repeat("x", 30_000) + `"}`},
		testenv.Event{Topic: topic, Key: key, Payload: testenv.Payload(2)})
	for _, id := range ids {
		f.ledger.Sending(load.Event{ID: uuid.MustParse(id)}, time.Now())
	}
	want := map[relay.Policy]string{
		relay.Park: "parked, behind it published", relay.Block: "parked", relay.DeadLetter: "dead_lettered, published, behind it published",
	}[policy]
	testenv.Eventually(b, "the policy is applied", func() bool {
		var got string
		err := f.pool.QueryRow(b.Context(), `SELECT concat_ws(', ', f.state,
				CASE WHEN large.published_at IS NOT NULL THEN 'published' END,
				CASE WHEN behind.published_at IS NOT NULL THEN 'behind it published' END)
			FROM outbox_relay_failure f
			JOIN outbox_event large USING (event_id), outbox_event behind
			WHERE large.event_id = $1 AND behind.event_id = $2`, ids[0], ids[1]).Scan(&got)
		return err == nil && got == want
	})
}

// countdown is over when so many records have arrived.
type countdown struct {
	left atomic.Int64
	over chan struct{}
}

func newCountdown(n int) *countdown {
	c := &countdown{over: make(chan struct{})}
	c.left.Store(int64(n))
	return c
}

func (c *countdown) arrived(*kgo.Record, time.Duration) {
	if c.left.Add(-1) == 0 {
		close(c.over)
	}
}

const warmUpRows = 5 * troubleRate

// warmUp pays for what happens once, with keys of its own.
func (f *flow) warmUp(b *testing.B) {
	b.Helper()
	w := f.writer(b, troubleRate, warmUpRows)
	w.KeyPrefix = "warm-"
	f.write(b, w)
	f.arrive(b)
}

// reportLatency stops the relay once every event has arrived, and reports the
// latency of those after the warm-up.
func (f *flow) reportLatency(b *testing.B, stop func()) {
	b.Helper()
	f.arrive(b)
	stop()
	found := f.catchUp(b)
	check(b, found)
	percentiles := load.Percentiles(found.FromInsert[warmUpRows:], 50, 99)
	report(b, milliseconds(percentiles[0]), "p50-ms")
	report(b, milliseconds(percentiles[1]), "p99-ms")
}

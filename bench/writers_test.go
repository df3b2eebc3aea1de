package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-relay/outbox-relay/internal/load"
	"github.com/outbox-relay/outbox-relay/notify"
	"github.com/outbox-relay/outbox-relay/relay"
)

// slice is how long one table is written before it is the other's turn: long
// against a commit, short against the moods of a machine. What is committed
// during its lead-in does not count.
type slice struct{ leadIn, counted time.Duration }

var (
	short = slice{25 * time.Millisecond, 100 * time.Millisecond}
	// long leaves an adaptive relay the 100 ms of a sudden load that it needs to
	// release the bell.
	long = slice{250 * time.Millisecond, 250 * time.Millisecond}
)

func (s slice) length() time.Duration { return s.leadIn + s.counted }

// BenchmarkWriters measures what the doorbell costs those who write: commits/s
// of transactions without a pause between them, in turn with those on a table
// without trigger.
//
// With transaction=business a transaction is what a service commits: a row of
// its own and the outbox row, statement by statement. With transaction=pipelined
// the same goes from BEGIN to COMMIT in one round trip, which is the least that it
// can cost. With transaction=bare it is nothing but the INSERT of the outbox row,
// the worst case for the trigger.
//
// In the first four cases no relay runs, so that the trigger alone makes the
// difference:
//
//   - no-trigger: no trigger here either. How far its ratio is from 100 is the
//     error of the others.
//   - never: a trigger whose condition is constant, and false. No trigger can
//     cost less.
//   - awake: the bell is free, as when an adaptive relay is awake.
//   - asleep: the bell is held and somebody listens, as when an adaptive relay
//     sleeps, so that each commit notifies. A real relay sleeps only while few
//     rows come.
//
// In the others a relay publishes what is written, and takes its share of the
// machine. The table without trigger has one as well, that only polls:
//
//   - relay=adaptive: the bell is held and released as the rate demands.
//   - relay=always: the bell is held throughout.
func BenchmarkWriters(b *testing.B) {
	for _, shape := range []transaction{bare, pipelined, business} {
		b.Run("no-trigger/transaction="+string(shape), func(b *testing.B) {
			plain := newOutbox(b).withoutTrigger(b)
			benchmarkWriters(b, short, shape, plain, plain)
		})
		b.Run("awake/transaction="+string(shape), func(b *testing.B) {
			o := newOutbox(b)
			benchmarkWriters(b, short, shape, o, o.withoutTrigger(b))
		})
	}
	b.Run("never/transaction=bare", func(b *testing.B) {
		const never = `CREATE OR REPLACE TRIGGER outbox_relay_notify AFTER INSERT ON outbox_event
			FOR EACH STATEMENT WHEN (false) EXECUTE FUNCTION outbox_relay_notify()`
		o := newOutbox(b)
		if _, err := o.pool.Exec(b.Context(), never); err != nil {
			b.Fatal(err)
		}
		benchmarkWriters(b, short, bare, o, o.withoutTrigger(b))
	})
	b.Run("asleep/transaction=bare", func(b *testing.B) {
		o := newOutbox(b)
		o.holdBell(b)
		benchmarkWriters(b, short, bare, o, o.withoutTrigger(b))
	})
	for _, mode := range []notify.Mode{notify.Adaptive, notify.Always} {
		b.Run("relay="+string(mode)+"/transaction=bare", func(b *testing.B) {
			o := newOutbox(b)
			plain := o.withoutTrigger(b)
			stop := o.relayInMode(b, mode)
			stopPlain := plain.relayInMode(b, notify.Off)
			benchmarkWriters(b, long, bare, o, plain)

			o.awaitMarked(b)
			plain.awaitMarked(b)
			stop()
			stopPlain()
			o.verifyTopic(b)
			plain.verifyTopic(b)
		})
	}
}

func (o *outbox) relayInMode(b *testing.B, mode notify.Mode) (stop func()) {
	b.Helper()
	r, stop := o.relay(b, func(cfg *relay.Config) { cfg.Notify = mode })
	awaitReady(b, r)
	return stop
}

// holdBell does to the writers what a sleeping relay does.
func (o *outbox) holdBell(b *testing.B) {
	b.Helper()
	conn, err := pgx.Connect(b.Context(), o.cfg.DatabaseURL)
	if err != nil {
		b.Fatal(err)
	}
	// The key that the trigger tries.
	const bell = "SELECT oid, pg_advisory_lock(1868724322, oid::int4)::text FROM pg_class WHERE oid = $1::text::regclass"
	var relid uint32
	if err := conn.QueryRow(b.Context(), bell, o.table.Sanitize()).Scan(&relid, nil); err != nil {
		b.Fatalf("take the bell of %s: %v", o.table, err)
	}
	if _, err := conn.Exec(b.Context(), "LISTEN "+pgx.Identifier{notify.Channel(relid)}.Sanitize()); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	var listener sync.WaitGroup
	listener.Go(func() {
		for ctx.Err() == nil {
			if _, err := conn.WaitForNotification(ctx); err != nil && ctx.Err() == nil {
				b.Errorf("hold the bell of %s: %v", o.table, err)
				return
			}
		}
	})
	b.Cleanup(func() {
		cancel()
		listener.Wait()
		_ = conn.Close(context.Background()) // nothing depends on a clean goodbye
	})
}

// benchmarkWriters alternates slices on both outboxes. Which comes first changes,
// so that a drift of the machine favours neither.
func benchmarkWriters(b *testing.B, turn slice, shape transaction, o, plain *outbox) {
	crowd := newCrowd(b, o.cfg.DatabaseURL)
	inserts := [2]load.InsertFunc{shape.insert(b, o), shape.insert(b, plain)}
	// write commits for one slice, and returns the commits/s in it.
	write := func(i int) float64 {
		n, took, err := crowd.write(b.Context(), turn, inserts[i], [2]*outbox{o, plain}[i].topic, payloadBytes(b))
		if err != nil {
			b.Fatalf("write without pause: %v", err)
		}
		return float64(n) / took.Seconds()
	}
	write(0) // prepares each connection's statements
	write(1)
	var perSecond [2][]float64
	var ratios []float64
	b.ResetTimer()
	for pair := range b.N * max(1, int(passLength(b)/(2*turn.length()))) {
		var now [2]float64
		now[pair%2] = write(pair % 2)
		now[1-pair%2] = write(1 - pair%2)
		for i := range now {
			perSecond[i] = append(perSecond[i], now[i])
		}
		ratios = append(ratios, 100*now[0]/now[1])
	}
	report(b, median(perSecond[0]), "commits/s")
	report(b, median(perSecond[1]), "no-trigger-commits/s")
	report(b, median(ratios), "%-of-no-trigger")
}

// median is the middle of the values, which a stall of the machine in one slice
// does not move.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// crowd is a set of connections. Each writes its own key, so that the order of
// the events of a key is that of their commits.
type crowd []*pgx.Conn

func newCrowd(b *testing.B, url string) crowd {
	b.Helper()
	c := make(crowd, setting(b, "BENCH_WRITERS", 64))
	for i := range c {
		conn, err := pgx.Connect(b.Context(), url)
		if err != nil {
			b.Fatalf("connect writer %d of %d: %v", i+1, len(c), err)
		}
		b.Cleanup(func() { _ = conn.Close(context.Background()) })
		c[i] = conn
	}
	return c
}

// write commits as fast as it goes for one slice, and returns how many commits
// there were after the lead-in and how long they really took.
func (c crowd) write(ctx context.Context, turn slice, insert load.InsertFunc, topic string, payload int) (commits int, took time.Duration, err error) {
	counts := make([]int, len(c))
	began := time.Now()
	var group errgroup.Group
	for i, conn := range c {
		event := load.Event{Key: fmt.Sprintf("key-%03d", i+1), Topic: topic, PayloadSize: payload}
		group.Go(func() (err error) {
			for time.Since(began) < turn.length() {
				if event.ID, err = uuid.NewV7(); err != nil {
					return err
				}
				event.Seq++
				if err = insert(ctx, conn, event); err != nil {
					return err
				}
				if time.Since(began) > turn.leadIn {
					counts[i]++
				}
			}
			return nil
		})
	}
	err = group.Wait()
	took = time.Since(began) - turn.leadIn
	for _, n := range counts {
		commits += n
	}
	return commits, took, err
}

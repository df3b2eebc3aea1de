package bench

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outbox-relay/outbox-relay/internal/load"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
	"github.com/outbox-relay/outbox-relay/relay"
)

const (
	otherKeys = 10_000

	// freezeTime is how long the trouble lasts, and how long one looks on.
	freezeTime = 4 * time.Second
)

// BenchmarkFairness measures what trouble with some keys does to 10,000 others,
// one event each, that are written behind them:
//
//   - frozen=N/keys=many and frozen=N/keys=one: a relay that froze holds the first
//     N rows of the table, those of N keys or of one, for 4 s or until all others
//     are published. BENCH_FROZEN_ROWS lists the N.
//   - slow-acks: of one key 20,000 rows wait, in a topic that is acknowledged
//     50 ms late. The Kafka is in memory here, even if KAFKA_BROKERS is set.
//
// events-in-4s, first-ms and all-ms say how many of the others were published in
// 4 s from the relay's start, and when the first and the last one of them was. The
// same under could-be-... is without the trouble: the rows at the head are there,
// but nobody holds them, and the acks come at once.
func BenchmarkFairness(b *testing.B) {
	for _, rows := range list(b, "BENCH_FROZEN_ROWS", "5000") {
		b.Run(fmt.Sprintf("frozen=%d/keys=many", rows), func(b *testing.B) {
			compare(b, func(held bool) others { return frozenHead(b, rows, rows, held) })
		})
		b.Run(fmt.Sprintf("frozen=%d/keys=one", rows), func(b *testing.B) {
			compare(b, func(held bool) others { return frozenHead(b, rows, 1, held) })
		})
	}
	b.Run("slow-acks", func(b *testing.B) {
		compare(b, func(slow bool) others { return slowAcks(b, slow) })
	})
}

// others is what became of the other keys.
type others struct {
	inTime     int64
	first, all time.Duration
}

func compare(b *testing.B, measure func(trouble bool) others) {
	for _, side := range []struct {
		prefix  string
		trouble bool
	}{{"could-be-", false}, {"", true}} {
		found := measure(side.trouble)
		report(b, float64(found.inTime), side.prefix+"events-in-4s")
		report(b, milliseconds(found.first), side.prefix+"first-ms")
		report(b, milliseconds(found.all), side.prefix+"all-ms")
	}
}

// frozenHead publishes a head that is held, or not, and the others behind it.
func frozenHead(b *testing.B, rows, keys int, held bool) others {
	b.Helper()
	o, ledger := newOutbox(b), load.NewLedger()
	o.fill(b, ledger, backlog{rows: rows, keys: keys, keyPrefix: "head-", topic: o.topic})
	release := func() {}
	if held {
		release = o.freeze(b, rows)
	}
	return o.publishOthers(b, ledger, release)
}

// slowAcks publishes a hot key in a topic of its own, and the others behind it.
func slowAcks(b *testing.B, slow bool) others {
	b.Helper()
	const hotRows = 20_000
	kafka := testenv.FakeKafka(b, kfake.NumBrokers(3))
	o, ledger := newOutboxOn(b, kafka.ListenAddrs()), load.NewLedger()
	hot := testenv.Topic(b, o.cfg.Brokers, 1)
	if slow {
		delayProduce(kafka, hot, 50*time.Millisecond)
	}
	o.fill(b, ledger, backlog{rows: hotRows, keys: 1, keyPrefix: "hot-", topic: hot})
	return o.publishOthers(b, ledger, func() {}, hot)
}

// publishOthers writes the others, starts a relay and follows them for as long
// as the trouble lasts. What is left is published after its release, so that
// nothing is lost, repeated or out of order in the end.
func (o *outbox) publishOthers(b *testing.B, ledger *load.Ledger, release func(), more ...string) others {
	b.Helper()
	watch := newWatch("other-", otherKeys)
	o.fill(b, ledger, backlog{rows: otherKeys, keys: otherKeys, keyPrefix: watch.prefix, topic: o.topic})
	f := o.startFlow(b, ledger, func(r *kgo.Record, _ time.Duration) { watch.note(r) }, more...)

	began := time.Now()
	_, stop := f.relay(b, func(*relay.Config) {})
	freeze := time.NewTimer(freezeTime)
	defer freeze.Stop()
	select {
	case <-watch.done:
	case <-freeze.C:
	}
	found := others{inTime: watch.seen.Load()}
	release()
	watch.await(b)
	found.first, found.all = watch.firstAt.Sub(began), watch.allAt.Sub(began)
	check(b, f.finish(b, stop))
	return found
}

// freeze holds the first rows as a frozen relay does, until it is released.
func (o *outbox) freeze(b *testing.B, rows int) (release func()) {
	b.Helper()
	conn, err := pgx.Connect(b.Context(), o.cfg.DatabaseURL)
	if err != nil {
		b.Fatal(err)
	}
	release = func() { _ = conn.Close(context.Background()) } // nothing depends on a clean goodbye
	b.Cleanup(release)
	hold := "SELECT FROM " + o.table.Sanitize() + " ORDER BY id LIMIT $1 FOR UPDATE"
	batch := &pgx.Batch{}
	batch.Queue("BEGIN")
	batch.Queue(hold, rows)
	if err := conn.SendBatch(b.Context(), batch).Close(); err != nil {
		b.Fatalf("hold the first %d rows: %v", rows, err)
	}
	return release
}

// delayProduce has every request that carries records of the topic wait before
// the broker looks at it.
func delayProduce(kafka *kfake.Cluster, topic string, delay time.Duration) {
	id := kafka.TopicInfo(topic).TopicID
	kafka.ControlKey(int16(kmsg.Produce), func(request kmsg.Request) (kmsg.Response, error, bool) {
		kafka.KeepControl()
		if slices.ContainsFunc(request.(*kmsg.ProduceRequest).Topics, func(t kmsg.ProduceRequestTopic) bool {
			return t.Topic == topic || t.TopicID == id
		}) {
			kafka.SleepControl(func() { <-time.After(delay) })
		}
		return nil, nil, false
	})
}

package bench

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-relay/outbox-relay/internal/load"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// flow is what an outbox's events go through behind the relay: a consumer, and
// the ledger that accounts for each event.
type flow struct {
	*outbox
	ledger   *load.Ledger
	consumer *load.Consumer
}

// arrival is told of each record that arrives, repeats included.
type arrival = func(record *kgo.Record, latency time.Duration)

// startFlow starts a consumer of the outbox's topic and of more, and returns
// once it fetches, so that no event is charged with its start. onArrival may be
// nil.
func (o *outbox) startFlow(b *testing.B, ledger *load.Ledger, onArrival arrival, more ...string) *flow {
	b.Helper()
	f := &flow{outbox: o, ledger: ledger}
	topics := append(slices.Clone(more), o.topic)
	consumer, err := load.NewConsumer(o.cfg.Brokers, topics, f.ledger)
	if err != nil {
		b.Fatal(err)
	}
	f.consumer = consumer
	consumer.OnRecord = onArrival
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	var group errgroup.Group
	group.Go(func() error { return consumer.Run(ctx) })
	b.Cleanup(func() {
		cancel()
		if err := group.Wait(); err != nil {
			b.Error(err)
		}
		consumer.Close()
	})
	testenv.Eventually(b, "the consumer fetches", func() bool {
		select {
		case <-consumer.Ready():
			return true
		default:
			return false
		}
	})
	return f
}

// writer returns a writer of single-row commits at a fixed rate, in an open
// loop: a slow relay does not slow the writers, which would hide its slowness.
func (f *flow) writer(b *testing.B, rate, count int) *load.Writer {
	b.Helper()
	return &load.Writer{
		URL:    f.cfg.DatabaseURL,
		Insert: load.InsertOutbox(f.table),
		Ledger: f.ledger,
		Topics: []string{f.topic},
		Keys:   128, KeyPrefix: "key-",
		Conns:       16,
		Rate:        float64(rate),
		Count:       count,
		PayloadSize: payloadBytes(b),
	}
}

// write runs a writer to its end.
func (f *flow) write(b *testing.B, w *load.Writer) {
	b.Helper()
	if err := w.Run(b.Context()); err != nil {
		b.Fatal(err)
	}
}

// arrive returns once every committed event has arrived.
func (f *flow) arrive(b *testing.B) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), settleTimeout)
	defer cancel()
	if err := f.ledger.Await(ctx); err != nil {
		b.Error(err)
	}
}

// finish waits until every event has arrived and is marked, stops the relays,
// and reads the topics to their end.
func (f *flow) finish(b *testing.B, stops ...func()) load.Report {
	b.Helper()
	f.arrive(b)
	f.awaitMarked(b)
	for _, stop := range stops {
		stop()
	}
	return f.catchUp(b)
}

// catchUp reads the topics to their end. No relay may run any more.
func (f *flow) catchUp(b *testing.B) load.Report {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), settleTimeout)
	defer cancel()
	if err := f.consumer.CatchUp(ctx); err != nil {
		b.Fatal(err)
	}
	return f.ledger.Report()
}

// verifyTopic holds the topic against the table, whose rows are all committed.
// The events of a key have to come in the order of their ids.
func (o *outbox) verifyTopic(b *testing.B) {
	b.Helper()
	rows, err := o.pool.Query(b.Context(), "SELECT event_id, partition_key, id, topic FROM "+o.table.Sanitize())
	if err != nil {
		b.Fatal(err)
	}
	ledger := load.NewLedger()
	if err := enter(ledger, rows); err != nil {
		b.Fatalf("read the rows of %s: %v", o.table, err)
	}
	check(b, o.startFlow(b, ledger, nil).catchUp(b))
}

// enter tells the ledger of rows that are committed or about to be. The order
// of a key's events is that of their ids.
func enter(ledger *load.Ledger, rows pgx.Rows) error {
	now := time.Now()
	var event load.Event
	_, err := pgx.ForEachRow(rows, []any{&event.ID, &event.Key, &event.Seq, &event.Topic}, func() error {
		ledger.Sending(event, now)
		ledger.Committed(event.ID, now)
		return nil
	})
	return err
}

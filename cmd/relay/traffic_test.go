package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-relay/outbox-relay/internal/load"
	"github.com/outbox-relay/outbox-relay/internal/pgtable"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// trafficKeys is below the number of busy keys that make a relay look at more
// rows than a batch, so that no claim is larger than RELAY_BATCH_MAX.
const trafficKeys = 6

// trafficLimit is generous: it is for what never comes.
const trafficLimit = 5 * time.Minute

// traffic is events that are written, and a consumer that accounts for them,
// while relays come and go.
type traffic struct {
	ledger   *load.Ledger
	consumer *load.Consumer
	pool     *pgxpool.Pool
	url      string
	topics   []string

	// arrived is told of each record that the consumer reads.
	arrived func(record *kgo.Record, latency time.Duration)

	writing                  context.Context
	writers                  *errgroup.Group
	stopWriting, stopReading context.CancelFunc
	read                     chan error
}

// startTraffic begins to write 400 events/s on six keys and two topics, and to
// consume them. What goes wrong in either is reported by drain and verdict.
func startTraffic(t *testing.T, env variables) *traffic {
	t.Helper()
	f := newTraffic(t, env, 2)
	f.consume(t)
	w := f.writer("key-", trafficKeys, 400)
	f.write(w.Run)
	return f
}

// newTraffic has as many topics and neither consumes nor writes yet.
func newTraffic(t *testing.T, env variables, topics int) *traffic {
	t.Helper()
	brokers := strings.Split(env["KAFKA_BROKERS"], ",")
	f := &traffic{
		ledger: load.NewLedger(), url: env["DATABASE_URL"], pool: testenv.Pool(t, env["DATABASE_URL"]),
		arrived: func(*kgo.Record, time.Duration) {}, read: make(chan error, 1),
	}
	for range topics {
		f.topics = append(f.topics, testenv.Topic(t, brokers, 3))
	}
	var err error
	if f.consumer, err = load.NewConsumer(brokers, f.topics, f.ledger); err != nil {
		t.Fatal(err)
	}
	f.consumer.OnRecord = func(record *kgo.Record, latency time.Duration) { f.arrived(record, latency) }
	f.writing, f.stopWriting = context.WithCancel(context.WithoutCancel(t.Context()))
	f.writers, f.writing = errgroup.WithContext(f.writing)
	t.Cleanup(func() {
		f.stopWriting()
		_ = f.writers.Wait() // drain has reported it
	})
	return f
}

// consume reads the topics until verdict has seen all of them, or the test
// ends.
func (f *traffic) consume(t *testing.T) {
	t.Helper()
	var reading context.Context
	reading, f.stopReading = context.WithCancel(context.WithoutCancel(t.Context()))
	gone := make(chan struct{})
	go func() {
		f.read <- f.consumer.Run(reading)
		f.consumer.Close()
		close(gone)
	}()
	t.Cleanup(func() {
		f.stopReading()
		<-gone
	})
}

// writer writes to all topics, events of 200 bytes, under keys of its own.
func (f *traffic) writer(keyPrefix string, keys int, rate float64) *load.Writer {
	return &load.Writer{
		URL: f.url, Insert: load.InsertOutbox(pgtable.Name{Schema: "public", Table: "outbox_event"}),
		Ledger: f.ledger, Topics: f.topics, Keys: keys, KeyPrefix: keyPrefix, Conns: 3, Rate: rate, PayloadSize: 200,
	}
}

// write has write write, until drain ends its context.
func (f *traffic) write(write func(context.Context) error) {
	f.writers.Go(func() error { return write(f.writing) })
}

// flow waits until n more events have arrived for the first time.
func (f *traffic) flow(t *testing.T, n int) {
	t.Helper()
	arrived := func() int {
		counts, _ := f.ledger.Counts(0)
		return counts.Consumed
	}
	target := arrived() + n
	testenv.Eventually(t, "more events arrive", func() bool { return arrived() >= target })
}

// drain ends the writing and waits until every event has arrived and is marked.
func (f *traffic) drain(t *testing.T) {
	t.Helper()
	f.stopWriting()
	if err := f.writers.Wait(); err != nil {
		t.Fatalf("the writers failed: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), trafficLimit)
	defer cancel()
	if err := f.ledger.Await(ctx); err != nil {
		select {
		case readErr := <-f.read:
			t.Fatalf("the consumer failed: %v", readErr)
		default:
			t.Fatal(err)
		}
	}
	testenv.Eventually(t, "all rows are marked", func() bool {
		var unpublished int
		err := f.pool.QueryRow(ctx, "SELECT count(*) FROM outbox_event WHERE published_at IS NULL").Scan(&unpublished)
		return err == nil && unpublished == 0
	})
}

// verdict ends the consumer once it has read everything, and fails the test
// unless each event arrived, nothing else did, and each key was in order. It
// returns the number of repeats. No relay may run any more.
func (f *traffic) verdict(t *testing.T) (repeats int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), trafficLimit)
	defer cancel()
	if err := f.consumer.CatchUp(ctx); err != nil {
		t.Fatal(err)
	}
	f.stopReading()
	if err := <-f.read; err != nil {
		t.Fatalf("the consumer failed: %v", err)
	}
	r := f.ledger.Report()
	t.Logf("%d events committed, %d repeats", r.Committed, r.Duplicates)
	if r.Lost > 0 || r.OutOfOrder > 0 || r.Unknown > 0 {
		t.Errorf("%d events lost, %d first deliveries out of order, %d of events that nobody wrote; want none",
			r.Lost, r.OutOfOrder, r.Unknown)
	}
	return r.Duplicates
}

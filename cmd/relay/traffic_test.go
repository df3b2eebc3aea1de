package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-relay/outbox-relay/internal/load"
	"github.com/outbox-relay/outbox-relay/internal/pgtable"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// trafficKeys is below the number of busy keys that make a relay look at more
// rows than a batch, so that no claim is larger than RELAY_BATCH_MAX.
const trafficKeys = 6

// trafficLimit is generous: it is for what never comes.
const trafficLimit = time.Minute

// traffic is a load of 400 events/s on six keys and two topics, and a consumer
// that accounts for them, while relays come and go.
type traffic struct {
	ledger   *load.Ledger
	consumer *load.Consumer
	pool     *pgxpool.Pool

	stopWriting, stopReading context.CancelFunc
	written, read            chan error
}

// startTraffic begins to write and to consume. What goes wrong in either is
// reported by drain and verdict.
func startTraffic(t *testing.T, env variables) *traffic {
	t.Helper()
	brokers := strings.Split(env["KAFKA_BROKERS"], ",")
	topics := []string{testenv.Topic(t, brokers, 3), testenv.Topic(t, brokers, 3)}
	f := &traffic{
		ledger: load.NewLedger(), pool: testenv.Pool(t, env["DATABASE_URL"]),
		written: make(chan error, 1), read: make(chan error, 1),
	}
	var err error
	if f.consumer, err = load.NewConsumer(brokers, topics, f.ledger); err != nil {
		t.Fatal(err)
	}
	writer := &load.Writer{
		URL: env["DATABASE_URL"], Insert: load.InsertOutbox(pgtable.Name{Schema: "public", Table: "outbox_event"}),
		Ledger: f.ledger, Topics: topics, Keys: trafficKeys, KeyPrefix: "key-", Conns: 3, Rate: 400, PayloadSize: 200,
	}
	var writing, reading context.Context
	writing, f.stopWriting = context.WithCancel(context.WithoutCancel(t.Context()))
	reading, f.stopReading = context.WithCancel(context.WithoutCancel(t.Context()))
	writerGone, readerGone := make(chan struct{}), make(chan struct{})
	go func() {
		f.written <- writer.Run(writing)
		close(writerGone)
	}()
	go func() {
		f.read <- f.consumer.Run(reading)
		f.consumer.Close()
		close(readerGone)
	}()
	t.Cleanup(func() {
		f.stopWriting()
		f.stopReading()
		<-writerGone
		<-readerGone
	})
	return f
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
	if err := <-f.written; err != nil {
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

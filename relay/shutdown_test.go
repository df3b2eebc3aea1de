package relay

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// Relays are stopped and started under load: what was handed to Kafka is
// marked before a relay goes, so that nothing is repeated.
func TestStopsUnderLoadNeitherLoseNorRepeat(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 2)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	var (
		mu       sync.Mutex
		inserted []string
		writers  sync.WaitGroup
	)
	writing, stopWriting := context.WithCancel(t.Context())
	defer stopWriting()
	for _, key := range []string{"a", "b", "c", "d"} {
		writers.Go(func() {
			for seq := 1; writing.Err() == nil; seq++ {
				id, err := testenv.InsertInto(t.Context(), f.pool, pgx.Identifier{"outbox_event"},
					testenv.Event{Topic: topic, Key: key, Payload: testenv.Payload(seq)})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				inserted = append(inserted, id...)
				mu.Unlock()
			}
		})
	}
	for range 10 {
		before := len(consumer.Deliveries())
		r := f.start(t)
		consumer.WaitFor(t, before+50)
		r.stop(t)
	}
	stopWriting()
	writers.Wait()
	f.start(t)
	consumer.WaitFor(t, len(inserted))
	f.waitDrained(t)
	consumer.CheckOnce(t, inserted)
}

func TestShutdownTimeoutIsKeptAndSaid(t *testing.T) {
	t.Parallel()
	f, cluster := newFixtureWithKafka(t)
	f.cfg.ShutdownTimeout = 200 * time.Millisecond
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	fault := cluster.Fault(produceFault(kerr.NotEnoughReplicas, -1))
	r := f.start(t)
	testenv.Insert(t, f.pool, testenv.Sequence(topic, 10, "a")...)
	if err := fault.Wait(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	r.cancel()
	if err := <-r.done; !errors.Is(err, ErrShutdownIncomplete) {
		t.Errorf("Run returned %v, want ErrShutdownIncomplete", err)
	}
	r.done <- nil
	if n := f.unpublished(t); n != 10 {
		t.Errorf("%d rows are unpublished, want all 10", n)
	}
}

func TestRunIsForOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := f.start(t)
	testenv.Eventually(t, "running", func() bool { return r.Health().Ready() })
	if err := r.Run(t.Context()); !errors.Is(err, ErrAlreadyRun) {
		t.Errorf("second Run returned %v", err)
	}
}

// The database goes away under a running relay and comes back.
func TestDatabaseRestartLosesNothing(t *testing.T) {
	t.Parallel()
	server := testenv.Postgres(t)
	f := newFixtureAt(t, server.URL())
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	r := f.start(t)
	inserted := testenv.Insert(t, f.pool, testenv.Sequence(topic, 100, "a")...)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	consumer.WaitFor(t, 100)
	for range 2 {
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.pool.Reset()
		inserted = append(inserted, testenv.Insert(t, f.pool, testenv.Event{
			Topic: topic, Key: "b", Payload: testenv.Payload(len(inserted)),
		})...)
		testenv.Eventually(t, "the event arrives", func() bool { return len(consumer.Report(inserted).Lost) == 0 })
	}
	testenv.Eventually(t, "ready again", func() bool { return r.Health().Ready() && r.Health().ListenerUp })
	f.waitDrained(t)
	consumer.CheckAtLeastOnce(t, inserted)
}

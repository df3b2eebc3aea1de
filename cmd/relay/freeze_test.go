package main

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// One of two relays stops in the middle of a claim. The other one must go on
// with all keys but the one whose first rows it cannot have; that key must not
// go on with later rows; and it must go on soon after the first relay is gone.
func TestFrozenRelayHoldsUpNoKeyButItsOwn(t *testing.T) {
	buildRelay(t)
	t.Parallel()
	for _, tt := range []struct {
		name   string
		freeze func(t *testing.T, p *process)
	}{
		{"when its process is stopped", func(t *testing.T, p *process) {
			t.Helper()
			p.signal(t, syscall.SIGSTOP)
		}},
		// Its doorbell goes on, so that it stays the one that others leave the
		// first look to.
		{"when only its claim waits for Kafka", func(*testing.T, *process) {}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFreeze(t, "10m")
			tt.freeze(t, f.frozen)
			f.othersFlow(t)
			if n := f.arrived(hotKey); n > 0 {
				t.Errorf("%d events of the hot key overtook those that the frozen relay holds", n)
			}
			if f.holder(t) == "" {
				t.Fatal("the frozen relay holds no rows any more: this test shows nothing")
			}

			f.frozen.kill(t)
			f.awaitHotKey(t, time.Now())
			f.finish(t, f.other)
		})
	}
}

// Postgres ends the transaction of a relay that is frozen for longer than it may
// wait for Kafka. When it resumes, it still has the batch that the other relay
// has published since.
func TestFrozenRelayThatResumesOvertakesNothing(t *testing.T) {
	buildRelay(t)
	t.Parallel()
	f := newFreeze(t, "4s")
	f.frozen.signal(t, syscall.SIGSTOP)
	testenv.Eventually(t, "Postgres ends the transaction of the frozen relay", func() bool { return f.holder(t) == "" })
	f.awaitHotKey(t, time.Now())

	f.frozen.signal(t, syscall.SIGCONT)
	f.other.terminate(t)
	f.othersFlow(t) // through the one that was frozen
	f.frozen.ready(t)
	f.finish(t, f.frozen)
}

const (
	hotKey = "hot"
	// More rows of the hot key than any claim looks at lie before all others.
	hotRows = 2000
	// A relay at rest claims this many rows, so that the frozen one holds them.
	frozenRows = 50
)

// freeze is two relays, one of which holds the first rows of the hot key, has
// sent them to a broker that does not answer, and is to be frozen there.
type freeze struct {
	frozen, other *process
	at            time.Time
	held          *heldProduce

	pool     *pgxpool.Pool
	topic    string
	consumer *testenv.Consumer
	inserted []string
}

func newFreeze(t *testing.T, publishTimeout string) *freeze {
	t.Helper()
	kafka := testenv.FakeKafka(t)
	brokers := kafka.ListenAddrs()
	env := newEnvironment(t).with("KAFKA_BROKERS", strings.Join(brokers, ",")).with("RELAY_PUBLISH_TIMEOUT", publishTimeout)
	f := &freeze{pool: testenv.Pool(t, env["DATABASE_URL"]), topic: testenv.Topic(t, brokers, 3)}
	f.consumer = testenv.Consume(t, brokers, f.topic)
	relays := map[string]*process{"relay-a": nil, "relay-b": nil}
	for name := range relays {
		relays[name] = startProcess(t, env.with("DATABASE_URL", env.applicationName(t, name)))
	}
	for _, p := range relays {
		p.ready(t)
		p.listening(t)
	}

	f.held = holdProduce(t, kafka)
	f.inserted = testenv.Insert(t, f.pool, testenv.Sequence(f.topic, hotRows, hotKey)...)
	f.held.wait(t)
	holder := f.holder(t)
	for name, p := range relays {
		if name == holder {
			f.frozen = p
		} else {
			f.other = p
		}
	}
	if f.frozen == nil {
		t.Fatalf("the transaction is open in %q, want one of the relays", holder)
	}
	f.at = time.Now()
	return f
}

// holder returns the application name of the relay whose transaction waits for
// Kafka, or nothing.
func (f *freeze) holder(t *testing.T) string {
	t.Helper()
	rows, err := f.pool.Query(t.Context(), `SELECT application_name FROM pg_stat_activity
		WHERE datname = current_database() AND state = 'idle in transaction'`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(names, ",")
}

func (f *freeze) arrived(key string) (n int) {
	for _, d := range f.consumer.Deliveries() {
		if string(d.Key) == key {
			n++
		}
	}
	return n
}

// othersFlow commits events of other keys, one by one, and waits for them. The
// first one is alone: it must not need others behind it to be seen.
func (f *freeze) othersFlow(t *testing.T) {
	t.Helper()
	for _, n := range []int{1, 100} {
		committing := map[string]time.Time{}
		for _, event := range testenv.Sequence(f.topic, n, "b", "c", "d", "e", "f") {
			event.Payload = testenv.Payload(len(f.inserted) + 1) // rises from call to call
			began := time.Now()
			id := testenv.Insert(t, f.pool, event)
			committing[id[0]] = began
			f.inserted = append(f.inserted, id...)
		}
		var latencies []time.Duration
		testenv.Eventually(t, "the events of other keys arrive", func() bool {
			latencies = nil
			for _, d := range f.consumer.Deliveries() {
				if began, ok := committing[d.EventID]; ok {
					latencies = append(latencies, d.Received.Sub(began))
				}
			}
			return len(latencies) >= n
		})
		t.Logf("other keys: the slowest of %d events took %s", n, slices.Max(latencies))
	}
}

// awaitHotKey waits until the hot key has gone on through the other relay. Then
// it lets the broker store what the frozen relay had sent.
func (f *freeze) awaitHotKey(t *testing.T, freed time.Time) {
	t.Helper()
	testenv.Eventually(t, "the hot key goes on", func() bool { return f.arrived(hotKey) > 0 })
	t.Logf("hot key: its rows were free %s after the freeze, the first event came %s later", freed.Sub(f.at), time.Since(freed))
	f.consumer.WaitFor(t, len(f.inserted))
	f.held.release(true)
	testenv.Eventually(t, "the batch of the frozen relay arrives late", func() bool {
		return len(f.consumer.Deliveries()) >= len(f.inserted)+frozenRows
	})
}

// finish stops the last relay and looks at all that arrived.
func (f *freeze) finish(t *testing.T, last *process) {
	t.Helper()
	last.terminate(t)
	if repeats := f.consumer.CheckAtLeastOnce(t, f.inserted); repeats != frozenRows {
		t.Errorf("%d repeats, want the %d of the frozen relay's batch", repeats, frozenRows)
	}
}

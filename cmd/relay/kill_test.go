package main

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// CRASH_ROUNDS sets the number of kills.
func TestKillUnderLoadLosesNothingAndRepeatsOnlyTheBatchesInFlight(t *testing.T) {
	buildRelay(t)
	t.Parallel()
	env := newEnvironment(t).with("RELAY_WORKERS", "2").with("RELAY_BATCH_MAX", "100")
	inFlight := 2 * 2 * 100 // a batch published and one being marked, for each worker
	kills := rounds(t, "CRASH_ROUNDS", 20)

	traffic := startTraffic(t, env)
	for range kills {
		p := startProcess(t, env)
		// Small, so that starts are hit as well as every step of the cycle.
		traffic.flow(t, rand.IntN(60))
		p.kill(t)
	}
	survivor := startProcess(t, env)
	traffic.drain(t)
	survivor.terminate(t)
	repeats := traffic.verdict(t)
	t.Logf("%d kills, %.1f repeats for each", kills, float64(repeats)/float64(kills))
	if limit := kills * inFlight; repeats > limit {
		t.Errorf("%d repeats, want at most the %d of %d kills with %d rows in flight", repeats, limit, kills, inFlight)
	}
}

// The relay is stopped at each step of its cycle and killed there, which shows
// what a kill at that step costs.
func TestKillAtEachStepOfTheCycle(t *testing.T) {
	buildRelay(t)
	t.Parallel()
	const events = 10
	for _, tt := range []struct {
		name    string
		stop    func(t *testing.T, c *cycle) (resume func())
		repeats int
	}{
		{"before Kafka has the batch", stopInKafka(false), 0},
		{"before Kafka acknowledges the batch", stopInKafka(true), events},
		{"before the batch is marked", stopInMark(false), events},
		{"while the batch is marked", stopInMark(true), 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			kafka := testenv.FakeKafka(t)
			topic := testenv.Topic(t, kafka.ListenAddrs(), 1)
			env := newEnvironment(t).with("KAFKA_BROKERS", strings.Join(kafka.ListenAddrs(), ",")).
				// The test may take its time.
				with("RELAY_PUBLISH_TIMEOUT", "10m")
			c := &cycle{kafka: kafka, pool: testenv.Pool(t, env["DATABASE_URL"])}
			consumer := testenv.Consume(t, kafka.ListenAddrs(), topic)

			first := startProcess(t, env)
			first.ready(t)
			c.insert = func() []string { return testenv.Insert(t, c.pool, testenv.Sequence(topic, events, "a", "b")...) }
			resume := tt.stop(t, c)
			first.kill(t)
			resume()

			second := startProcess(t, env)
			inserted := append(c.inserted, testenv.Insert(t, c.pool, testenv.Event{
				Topic: topic, Key: "a", Payload: testenv.Payload(events + 1),
			})...)
			want := len(inserted) + tt.repeats
			testenv.Eventually(t, "all events and their repeats arrive", func() bool { return len(consumer.Deliveries()) >= want })
			second.terminate(t)
			if repeats := consumer.CheckAtLeastOnce(t, inserted); repeats != tt.repeats {
				t.Errorf("%d repeats, want %d", repeats, tt.repeats)
			}
		})
	}
}

// cycle is what a step of the relay's cycle can be stopped with.
type cycle struct {
	kafka    *kfake.Cluster
	pool     *pgxpool.Pool
	insert   func() []string
	inserted []string
}

// stopInKafka holds the batch on its way. The broker stores it after the
// relay's death, or never does.
func stopInKafka(store bool) func(*testing.T, *cycle) func() {
	return func(t *testing.T, c *cycle) func() {
		t.Helper()
		held := holdProduce(t, c.kafka)
		c.inserted = c.insert()
		held.wait(t)
		return func() { held.release(store) }
	}
}

// stopInMark holds the UPDATE. Postgres goes on with it after the relay's
// death, whose statements it has received, or the backend ends with the relay.
func stopInMark(finish bool) func(*testing.T, *cycle) func() {
	return func(t *testing.T, c *cycle) func() {
		t.Helper()
		exec := func(db testenv.Execer, sql string) {
			t.Helper()
			if _, err := db.Exec(t.Context(), sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
		exec(c.pool, `CREATE FUNCTION pass_gate() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN NULL; END $$`)
		exec(c.pool, `CREATE TRIGGER pass_gate BEFORE UPDATE ON outbox_event FOR EACH STATEMENT EXECUTE FUNCTION pass_gate()`)
		shut, err := c.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		exec(shut, `SELECT pg_advisory_xact_lock(4711)`)

		c.inserted = c.insert()
		const waiting = `FROM pg_stat_activity WHERE datname = current_database()
			AND application_name = 'outbox-relay' AND wait_event_type = 'Lock'`
		testenv.Eventually(t, "the mark waits", func() bool { return countRows(t, c.pool, waiting) == 1 })
		return func() {
			if !finish {
				exec(c.pool, `SELECT pg_terminate_backend(pid) `+waiting)
				testenv.Eventually(t, "the backend is gone", func() bool { return countRows(t, c.pool, waiting) == 0 })
			}
			if err := shut.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// countRows returns the number of rows of a FROM clause.
func countRows(t *testing.T, pool *pgxpool.Pool, from string) int {
	t.Helper()
	rows, err := pool.Query(t.Context(), "SELECT count(*) "+from)
	if err != nil {
		t.Fatal(err)
	}
	n, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

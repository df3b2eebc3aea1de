package relay

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
	"github.com/outbox-relay/outbox-relay/migrations"
)

// slowTick is a fallback that does not come in time to hide a missed wake.
func slowTick(cfg *Config) { cfg.PollInterval = time.Minute }

func TestBackendsTerminatedUnderLoadLoseNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	f.start(t)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	var inserted []string
	for i := range 100 {
		inserted = append(inserted, testenv.Insert(t, f.pool, testenv.Event{
			Topic: topic, Key: "k", Payload: testenv.Payload(i + 1),
		})...)
		if i%20 == 10 {
			f.terminate(t)
		}
	}
	testenv.Eventually(t, "every event arrived", func() bool { return len(consumer.Report(inserted).Lost) == 0 })
	consumer.CheckAtLeastOnce(t, inserted)
	f.waitDrained(t)
}

// Rows committed while the relay connects, before it listens, and between a
// claim that came back empty and its sleep. Without the fallback ticker, each
// of them must be found by the wake that covers its gap.
func TestRowsInTheGapsAreFoundWithoutTheTicker(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	inserted := testenv.Insert(t, f.pool, testenv.Sequence(topic, 5, "k")...)
	r := f.start(t, slowTick)
	for i := range 200 {
		inserted = append(inserted, testenv.Insert(t, f.pool, testenv.Event{
			Topic: topic, Key: "k", Payload: testenv.Payload(100 + i),
		})...)
		if i%10 == 0 {
			// The relay has published everything and is about to sleep.
			consumer.WaitFor(t, len(inserted))
		}
	}
	consumer.WaitFor(t, len(inserted))
	consumer.CheckOnce(t, inserted)
	r.stop(t)
}

func TestSilentAndBulkInsertsArePublished(t *testing.T) {
	t.Parallel()
	for name, insert := range map[string]func(*testing.T, *fixture, string){
		"with triggers disabled": func(t *testing.T, f *fixture, topic string) {
			f.exec(t, `SET session_replication_role = replica; `+insertOne(topic)+`; RESET session_replication_role`)
		},
		"with the trigger disabled": func(t *testing.T, f *fixture, topic string) {
			f.exec(t, `ALTER TABLE outbox_event DISABLE TRIGGER USER; `+insertOne(topic))
		},
		"by COPY": func(t *testing.T, f *fixture, topic string) {
			_, err := f.pool.CopyFrom(t.Context(), pgx.Identifier{"outbox_event"},
				[]string{"event_id", "aggregate_type", "aggregate_id", "event_type", "payload", "topic", "partition_key"},
				pgx.CopyFromRows([][]any{{"018f0000-0000-7000-8000-000000000001", "a", "1", "a.b", []byte(`{}`), topic, "k"}}))
			if err != nil {
				t.Fatal(err)
			}
		},
		"from a transaction rolled back to a savepoint": func(t *testing.T, f *fixture, topic string) {
			f.exec(t, `BEGIN; `+insertOne(topic)+`; SAVEPOINT s; `+insertOne(topic)+`; ROLLBACK TO SAVEPOINT s; COMMIT`)
		},
		"back to unpublished by an update": func(t *testing.T, f *fixture, topic string) {
			f.exec(t, `SET session_replication_role = replica; `+insertOne(topic)+`; RESET session_replication_role;
				UPDATE outbox_event SET published_at = now(); UPDATE outbox_event SET published_at = NULL`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			topic := testenv.Topic(t, f.cfg.Brokers, 1)
			f.start(t)
			testenv.Eventually(t, "the relay sleeps", func() bool { return f.armed(t) })
			insert(t, f, topic)
			consumer := testenv.Consume(t, f.cfg.Brokers, topic)
			consumer.WaitFor(t, 1)
			f.waitDrained(t)
		})
	}
}

// Two outbox tables of one database, with names that need quoting: each relay
// hears of its own.
func TestTablesOfOneDatabaseHaveBellsOfTheirOwn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	other := pgtable.Name{Schema: "Order Service", Table: `Outbox "Event"`}
	f.exec(t, `CREATE SCHEMA "Order Service"`)
	if _, err := migrations.Up(t.Context(), f.cfg.DatabaseURL, other, migrations.Options{Logger: f.log.Logger}); err != nil {
		t.Fatal(err)
	}
	topics := [2]string{testenv.Topic(t, f.cfg.Brokers, 1), testenv.Topic(t, f.cfg.Brokers, 1)}
	relays := [2]*running{f.start(t, slowTick), f.start(t, slowTick, func(c *Config) { c.Table = other.Sanitize() })}
	for _, r := range relays {
		testenv.Eventually(t, "each is the sentinel of its table, and asleep", func() bool { return r.Health().Sentinel && r.Health().BellArmed })
	}
	for i, table := range []pgx.Identifier{{"outbox_event"}, {other.Schema, other.Table}} {
		idle := relays[1-i].metric(t, "outbox_relay_wakes_total", "notify")
		ids, err := testenv.InsertInto(t.Context(), f.pool, table, testenv.Sequence(topics[i], 3, "k")...)
		if err != nil {
			t.Fatal(err)
		}
		consumer := testenv.Consume(t, f.cfg.Brokers, topics[i])
		consumer.WaitFor(t, len(ids))
		consumer.CheckOnce(t, ids)
		if n := relays[1-i].metric(t, "outbox_relay_wakes_total", "notify"); n != idle {
			t.Errorf("the relay of the other table was woken %v times", n-idle)
		}
	}
}

func TestABulkInsertIsOneNotification(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 4)
	const rows = 100_000
	f.start(t, slowTick)
	testenv.Eventually(t, "the relay sleeps", func() bool { return f.armed(t) })
	f.exec(t, fmt.Sprintf(`INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, event_type, payload, topic, partition_key)
		SELECT gen_random_uuid(), 'a', '1', 'a.b', jsonb_build_object('seq', n), '%s', 'key-' || n %% 100
		  FROM generate_series(1, %d) n`, topic, rows))
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	consumer.WaitFor(t, rows)
	f.waitDrained(t)
}

func insertOne(topic string) string {
	return fmt.Sprintf(`INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, event_type, payload, topic, partition_key)
		VALUES (gen_random_uuid(), 'a', '1', 'a.b', '{}', '%s', 'k')`, topic)
}

// exec runs a script in one session.
func (f *fixture) exec(t *testing.T, script string) {
	t.Helper()
	if _, err := f.pool.Exec(t.Context(), script, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%s: %v", script, err)
	}
}

// armed reports whether somebody holds the bell.
func (f *fixture) armed(t *testing.T) (armed bool) {
	t.Helper()
	err := f.pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks
		WHERE locktype = 'advisory' AND classid::bigint = 1868724322 AND mode = 'ExclusiveLock'
		  AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`).Scan(&armed)
	if err != nil {
		t.Fatal(err)
	}
	return armed
}

// terminate ends all of the relays' backends.
func (f *fixture) terminate(t *testing.T) {
	t.Helper()
	f.exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'outbox-relay'`)
}

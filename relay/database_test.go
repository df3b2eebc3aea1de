package relay

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// A server that cannot write (its disk is full, it has become a standby) is
// waited for, and what Kafka acknowledged meanwhile is not published again.
func TestDatabaseThatTakesNoMarksCausesNoRepeats(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]string{"disk full": "53100", "read only": "25006"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			topic := testenv.Topic(t, f.cfg.Brokers, 2)
			f.exec(t, `CREATE SEQUENCE refused`)
			f.exec(t, fmt.Sprintf(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
				'BEGIN PERFORM nextval(''refused''); RAISE EXCEPTION ''no'' USING ERRCODE = ''%s''; END'`, code))
			f.exec(t, `CREATE TRIGGER refuse BEFORE UPDATE ON outbox_event FOR EACH STATEMENT EXECUTE FUNCTION refuse()`)
			f.start(t)
			consumer := testenv.Consume(t, f.cfg.Brokers, topic)
			inserted := testenv.Insert(t, f.pool, testenv.Sequence(topic, 40, "a", "b", "c")...)
			testenv.Eventually(t, "several marks are refused", func() bool {
				var refused int
				err := f.pool.QueryRow(t.Context(), `SELECT last_value FROM refused`).Scan(&refused)
				return err == nil && refused >= 5
			})
			f.exec(t, `DROP TRIGGER refuse ON outbox_event`)
			inserted = append(inserted, testenv.Insert(t, f.pool, testenv.Event{Topic: topic, Key: "a", Payload: testenv.Payload(41)})...)
			consumer.WaitFor(t, len(inserted))
			f.waitDrained(t)
			consumer.CheckOnce(t, inserted)
			if n := len(f.log.Entries("server available again")); n != 1 {
				t.Errorf("its return is told %d times", n)
			}
		})
	}
}

// After a failover, a restore or a TRUNCATE an id may be that of another event.
func TestLateMarkLooksWhoseRowItIs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.bounded()
	eventIDs := testenv.Insert(t, f.pool, testenv.Sequence("a.b.c", 2, "k")...)
	conn, err := f.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	acked := []event{{id: 1, eventID: eventIDs[0]}, {id: 2, eventID: eventIDs[0]}}
	if err := b.sql.markLate(t.Context(), conn, acked); err != nil {
		t.Fatal(err)
	}
	if n := f.unpublished(t); n != 1 {
		t.Errorf("%d rows are unpublished, want the one of another event", n)
	}
}

// The role may have fewer connections than it needs, or none for a while.
func TestConnectionLimitIsWaitedFor(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	role, url := f.role(t, topic)
	r := f.start(t, func(cfg *Config) { cfg.DatabaseURL = url })
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	inserted := testenv.Insert(t, f.pool, testenv.Sequence(topic, 10, "a", "b")...)
	consumer.WaitFor(t, 10)

	f.exec(t, `ALTER ROLE `+role+` CONNECTION LIMIT 0`)
	f.exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '`+role+`'`)
	testenv.Eventually(t, "the refusal is shown", func() bool {
		return strings.Contains(r.Health().DatabaseError, "53300")
	})
	inserted = append(inserted, testenv.Insert(t, f.pool, testenv.Event{Topic: topic, Key: "a", Payload: testenv.Payload(11)})...)
	f.exec(t, `ALTER ROLE `+role+` CONNECTION LIMIT 2`) // too few for all it would like
	consumer.WaitFor(t, len(inserted))
	f.exec(t, `ALTER ROLE `+role+` CONNECTION LIMIT -1`)
	f.waitDrained(t)
	consumer.CheckAtLeastOnce(t, inserted)
}

// The password is rotated in the server and, a while later, in the file that the
// connection strings name.
func TestRotatedPasswordIsTakenFromItsFile(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	role, _ := f.role(t, topic)
	file := filepath.Join(t.TempDir(), "pgpass")
	rotate := func(password string) {
		t.Helper()
		if err := os.WriteFile(file, []byte("*:*:*:"+role+":"+password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rotate("secret")
	u, err := url.Parse(f.cfg.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(role)
	query := u.Query()
	query.Set("passfile", file)
	u.RawQuery = query.Encode()
	r := f.start(t, func(cfg *Config) { cfg.DatabaseURL = u.String() })
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	inserted := testenv.Insert(t, f.pool, testenv.Sequence(topic, 3, "a")...)
	consumer.WaitFor(t, 3)
	f.waitDrained(t)

	f.exec(t, "ALTER ROLE "+role+" PASSWORD 'rotated'")
	f.exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '`+role+`'`)
	f.log.WaitFor(t, `server refuses, nothing is lost and it is tried until it works: "relay check" tells what to do`)
	inserted = append(inserted, testenv.Insert(t, f.pool, testenv.Event{Topic: topic, Key: "a", Payload: testenv.Payload(4)})...)
	rotate("rotated")
	consumer.WaitFor(t, 4)
	f.waitDrained(t)
	consumer.CheckOnce(t, inserted)
	testenv.Eventually(t, "the listener is back", func() bool { return r.Health().ListenerUp })
}

package migrations_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// The key of the bell as the relay forms it: ASCII "obxb" and the table's oid.
const bellKey = "(1868724322, 'public.outbox_event'::regclass::oid::int4)"

// listener is a session that hears the channel of the table.
func listener(t *testing.T, url string) (conn *pgx.Conn, channel string) {
	t.Helper()
	conn = connect(t, url)
	relid := query[uint32](t, conn, "SELECT 'public.outbox_event'::regclass::oid")
	channel = "outbox_relay_" + strconv.FormatUint(uint64(relid), 10)
	exec(t, conn, "LISTEN "+channel)
	return conn, channel
}

// wantNextNotification fails unless the payload of the next notification is as
// given; the doorbell's own is empty.
func wantNextNotification(t *testing.T, conn *pgx.Conn, channel, payload string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	n, err := conn.WaitForNotification(ctx)
	if err != nil {
		t.Fatalf("wait for a notification on %s: %v", channel, err)
	}
	if n.Channel != channel || n.Payload != payload {
		t.Errorf("got notification %q on %s, want %q on %s", n.Payload, n.Channel, payload, channel)
	}
}

func TestAnInsertNotifiesWhileTheBellKeyIsHeld(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	up(t, url)
	relay, channel := listener(t, url)
	exec(t, relay, "SELECT pg_advisory_lock"+bellKey)

	writer := connect(t, url)
	// Many statements of one transaction make one notification.
	exec(t, writer, "BEGIN; "+insertOne+";"+insertOne+"; COMMIT; NOTIFY "+channel+", 'end'")
	wantNextNotification(t, relay, channel, "")
	wantNextNotification(t, relay, channel, "end")

	exec(t, relay, "SELECT pg_advisory_unlock"+bellKey)
	exec(t, writer, insertOne+"; NOTIFY "+channel+", 'end'")
	wantNextNotification(t, relay, channel, "end")
}

func TestWritersDoNotMakeEachOtherRing(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	up(t, url)
	relay, channel := listener(t, url)
	first, second := connect(t, url), connect(t, url)
	exec(t, first, "BEGIN; "+insertOne)
	exec(t, second, insertOne+"; NOTIFY "+channel+", 'end'")
	exec(t, first, "COMMIT")
	wantNextNotification(t, relay, channel, "end")
}

func TestOnlyInsertsRing(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	up(t, url)
	relay, channel := listener(t, url)
	writer := connect(t, url)
	exec(t, writer, insertOne)
	exec(t, relay, "SELECT pg_advisory_lock"+bellKey)
	exec(t, writer, "UPDATE outbox_event SET published_at = now(); DELETE FROM outbox_event; TRUNCATE outbox_event")
	exec(t, writer, "BEGIN; "+insertOne+"; ROLLBACK")
	exec(t, writer, "NOTIFY "+channel+", 'end'")
	wantNextNotification(t, relay, channel, "end")
}

// A relay that gets the key may conclude that every row written without a
// notification is visible.
func TestAWriterHoldsTheKeyUntilItsRowsAreVisible(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	up(t, url)
	relay, writer := connect(t, url), connect(t, url)
	const try = "SELECT pg_try_advisory_lock" + bellKey
	exec(t, writer, "BEGIN; "+insertOne)
	if query[bool](t, relay, try) {
		t.Error("the key could be had while a writer's transaction was open")
	}
	exec(t, writer, "COMMIT")
	if !query[bool](t, relay, try) {
		t.Error("the key could not be had after the writer's commit")
	}
}

func TestARoleThatMayOnlyInsertCanInsert(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	up(t, url)
	owner := connect(t, url)
	role := newRole(t, owner)
	exec(t, owner, "REVOKE ALL ON FUNCTION outbox_relay_notify() FROM PUBLIC; GRANT USAGE ON SCHEMA public TO "+role+"; GRANT INSERT ON outbox_event TO "+role)
	relay, channel := listener(t, url)
	writer := connect(t, with(t, url, "role", role))
	exec(t, writer, insertOne)
	exec(t, relay, "SELECT pg_advisory_lock"+bellKey)
	exec(t, writer, insertOne)
	wantNextNotification(t, relay, channel, "")
}

func TestTheBodyDoesNotDependOnTheWritersSearchPath(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	up(t, url)
	relay, channel := listener(t, url)
	exec(t, relay, "SELECT pg_advisory_lock"+bellKey)
	writer := connect(t, url)
	exec(t, writer, `CREATE SCHEMA evil;
		CREATE FUNCTION evil.cat(text, text) RETURNS text LANGUAGE sql AS $$ SELECT 'elsewhere' $$;
		CREATE OPERATOR evil.|| (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.cat);
		CREATE DOMAIN evil.text AS varchar CHECK (false);
		SET search_path = evil, pg_catalog`)
	exec(t, writer, insertOne)
	wantNextNotification(t, relay, channel, "")
}

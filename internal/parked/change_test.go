package parked_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/parked"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
	"github.com/outbox-relay/outbox-relay/migrations"
	"github.com/outbox-relay/outbox-relay/notify"
)

// listen hears the table's channel as a relay does. The returned function waits
// for the next notification.
func (f *fixture) listen(t *testing.T) (next func() string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), f.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	report, err := migrations.Inspect(t.Context(), conn, f.table)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "LISTEN "+notify.Channel(report.Relid)); err != nil {
		t.Fatal(err)
	}
	return func() string {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return n.Payload
	}
}

// state describes a record as an operator left it.
func (f *fixture) state(t *testing.T, row int64) string {
	t.Helper()
	return value[string](t, f, `SELECT concat_ws(' ', f.state, f.attempts, 'due=' || (f.next_attempt_at <= clock_timestamp()),
		f.reason, 'by=' || (f.changed_by = session_user), 'at=' || (f.changed_at > now() - interval '1 minute'), 'published=' || (o.published_at IS NOT NULL))
		FROM `+f.failures()+` f LEFT JOIN `+f.table.Sanitize()+` o ON o.id = f.row_id WHERE f.row_id = $1`, row)
}

func TestRequeueHasRowsTriedAgainAndWakesTheRelay(t *testing.T) {
	t.Parallel()
	f := newFixtureOf(t, quotedTable)
	rows := f.fail(t, 3, "shop.a", "1", parked.Parked)
	waiting := f.fail(t, 1, "shop.a", "1", parked.Waiting)[0]
	next := f.listen(t)
	n, err := f.store.Requeue(t.Context(), ids(t, fmt.Sprint(rows[0]), f.eventID(t, rows[1]), fmt.Sprint(waiting), fmt.Sprint(waiting)))
	if err != nil || n != 3 {
		t.Fatalf("requeued %d, %v, want 3", n, err)
	}
	if payload := next(); payload != "requeue" {
		t.Errorf("the notification says %q", payload)
	}
	for _, row := range []int64{rows[0], rows[1], waiting} {
		if got, want := f.state(t, row), "waiting 0 due=true by=true at=true published=false"; got != want {
			t.Errorf("row %d is %q, want %q", row, got, want)
		}
	}
	if got, want := f.state(t, rows[2]), "parked 3 due=false published=false"; got != want {
		t.Errorf("the row that was not named is %q, want %q", got, want)
	}
}

func TestRequeueRefusesAndNamesEach(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	good := f.fail(t, 1, "shop.a", "1", parked.Parked)[0]
	discarded := f.fail(t, 1, "shop.a", "1", parked.Discarded)[0]
	lettered := f.fail(t, 1, "shop.a", "1", parked.DeadLettered)[0]
	published := f.fail(t, 1, "shop.a", "1", parked.Parked)[0]
	gone := f.fail(t, 1, "shop.a", "1", parked.Parked)[0]
	anew := f.fail(t, 1, "shop.a", "1", parked.Parked)[0]
	f.exec(t, "UPDATE outbox_event SET published_at = now() WHERE id = $1", published)
	f.exec(t, "DELETE FROM outbox_event WHERE id = $1", gone)
	f.exec(t, "UPDATE outbox_event SET event_id = gen_random_uuid() WHERE id = $1", anew)
	const unknown = "019a3c5e-7a10-7c3e-9b0a-2f6d1c8e4b11"
	_, err := f.store.Requeue(t.Context(), ids(t, fmt.Sprint(good), fmt.Sprint(discarded), fmt.Sprint(lettered), fmt.Sprint(published), fmt.Sprint(gone), fmt.Sprint(anew), unknown))
	refused, ok := errors.AsType[*parked.RefusedError](err)
	if !ok || len(refused.Errs) != 6 || !errors.Is(err, parked.ErrUnknown) {
		t.Fatalf("got %v, want six refusals", err)
	}
	for _, want := range []string{
		fmt.Sprintf("row %d: it was discarded", discarded), fmt.Sprintf("row %d: it stands in the dead-letter topic", lettered),
		fmt.Sprintf("row %d: its row was published at", published), fmt.Sprintf("row %d: the outbox table does not have its row", gone),
		fmt.Sprintf("row %d: the outbox table does not have its row", anew), "row " + unknown + ": there is no failure record",
		"nothing was changed", "relay replay",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q:\n%v", want, err)
		}
	}
	if got := f.state(t, good); got != "parked 3 due=false published=false" {
		t.Errorf("the row beside them was changed: %q", got)
	}
}

func TestRequeueAllKeepsToTheFilterAndToWhatCanBePublished(t *testing.T) {
	t.Parallel()
	f := newFixtureOf(t, quotedTable)
	a := f.fail(t, 4500, "shop.a", "1", parked.Parked)
	waiting := f.fail(t, 1, "shop.a", "1", parked.Waiting)[0]
	f.fail(t, 3, "shop.b", "1", parked.Parked)
	discarded := f.fail(t, 1, "shop.a", "1", parked.Discarded)[0]
	f.exec(t, "UPDATE "+f.table.Sanitize()+" SET published_at = now() WHERE id = $1", a[1])
	f.exec(t, "DELETE FROM "+f.table.Sanitize()+" WHERE id = $1", a[2])
	next := f.listen(t)
	topic := "shop.a"
	n, left, err := f.store.RequeueAll(t.Context(), parked.Filter{Topic: &topic})
	if err != nil || n != 4499 || left != 2 {
		t.Fatalf("requeued %d, left %d, %v; want 4499 and 2", n, left, err)
	}
	next()
	if got := value[int64](t, f, "SELECT count(*) FROM "+f.failures()+" WHERE state = 'waiting' AND attempts = 0"); got != 4499 {
		t.Errorf("%d records wait with no attempt, want 4499", got)
	}
	if got := f.state(t, waiting); got != "waiting 0 due=true by=true at=true published=false" {
		t.Errorf("the row that waited is %q", got)
	}
	if got := f.state(t, discarded); !strings.HasPrefix(got, "discarded 3") {
		t.Errorf("the discarded row is %q", got)
	}
}

func TestDiscardTakesRowsOutOfTheIndexAndKeepsTheRecord(t *testing.T) {
	t.Parallel()
	f := newFixtureOf(t, quotedTable)
	rows := f.fail(t, 2, "shop.a", "1", parked.Parked)
	published := f.fail(t, 1, "shop.a", "1", parked.Waiting)[0]
	f.exec(t, "UPDATE "+f.table.Sanitize()+" SET published_at = '2020-01-01' WHERE id = $1", published)
	next := f.listen(t)
	n, err := f.store.Discard(t.Context(), ids(t, fmt.Sprint(rows[0]), fmt.Sprint(published)), "a test order")
	if err != nil || n != 2 {
		t.Fatalf("discarded %d, %v, want 2", n, err)
	}
	next()
	if got, want := f.state(t, rows[0]), "discarded 3 due=false a test order by=true at=true published=true"; got != want {
		t.Errorf("the row is %q, want %q", got, want)
	}
	if got := value[time.Time](t, f, "SELECT published_at FROM "+f.table.Sanitize()+" WHERE id = $1", published); got.Year() != 2020 {
		t.Errorf("a row that was published has another time: %s", got)
	}
	if got := f.state(t, rows[1]); got != "parked 3 due=false published=false" {
		t.Errorf("the row that was not named is %q", got)
	}

	_, err = f.store.Discard(t.Context(), ids(t, fmt.Sprint(rows[0])), "again")
	if _, ok := errors.AsType[*parked.RefusedError](err); !ok || !strings.Contains(err.Error(), "it was discarded by ") {
		t.Errorf("the second discard gave %v, want a refusal that says by whom", err)
	}
	if got := f.state(t, rows[0]); !strings.Contains(got, "a test order") {
		t.Errorf("the second discard changed the record: %q", got)
	}
}

// A row of another event, which got its id after the table was emptied, is not
// marked as published.
func TestDiscardDoesNotTouchTheRowOfAnotherEvent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	row := f.fail(t, 1, "shop.a", "1", parked.Parked)[0]
	f.exec(t, "UPDATE outbox_event SET event_id = gen_random_uuid()")
	if _, err := f.store.Discard(t.Context(), ids(t, fmt.Sprint(row)), "old"); err != nil {
		t.Fatal(err)
	}
	if got := f.state(t, row); !strings.HasPrefix(got, "discarded") || !strings.HasSuffix(got, "published=false") {
		t.Errorf("the record is %q, want it discarded and the row unpublished", got)
	}
}

// A relay that publishes the row right now decides: here it succeeds, and removes
// the record.
func TestDiscardWaitsForARelayThatHoldsTheRow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	row := f.fail(t, 1, "shop.a", "1", parked.Waiting)[0]
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "SELECT FROM outbox_event WHERE id = $1 FOR UPDATE SKIP LOCKED", row); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := f.store.Discard(t.Context(), ids(t, fmt.Sprint(row)), "given up")
		done <- err
	}()
	testenv.Eventually(t, "the discard waits for the row", func() bool {
		return value[bool](t, f, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')")
	})
	// The record is free for the relay, which locks it last: were it held, the two
	// would wait for each other.
	if _, err := tx.Exec(t.Context(), "SELECT FROM outbox_relay_failure WHERE row_id = $1 FOR UPDATE NOWAIT", row); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "DELETE FROM outbox_relay_failure WHERE row_id = $1", row); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "UPDATE outbox_event SET published_at = now() WHERE id = $1", row); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, parked.ErrUnknown) {
		t.Errorf("the discard gave %v, want it to find the record gone", err)
	}
}

func TestWithoutTheRightsTheErrorSaysWhichToGrant(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	row := f.fail(t, 1, "shop.a", "1", parked.Parked)[0]
	role := "test_" + strings.ToLower(rand.Text())
	f.exec(t, "CREATE ROLE "+role)
	t.Cleanup(func() {
		// READ WRITE, since the test changes the default.
		if _, err := f.pool.Exec(context.Background(), "BEGIN READ WRITE; DROP OWNED BY "+role+"; DROP ROLE "+role+"; COMMIT"); err != nil {
			t.Error(err)
		}
	})
	store := f.open(t, f.with(t, "role", role))
	id := ids(t, fmt.Sprint(row))
	_, listing := store.Count(t.Context(), parked.Filter{})
	_, discarding := store.Discard(t.Context(), id, "x")
	for _, err := range []error{listing, discarding} {
		if err == nil || !strings.Contains(err.Error(), "permission denied") || !strings.Contains(err.Error(), `GRANT SELECT, UPDATE ON "public"."outbox_relay_failure"`) {
			t.Errorf("got %v, want an error that names the grants", err)
		}
	}
	// What the error names is enough, with the role's defaults in the way.
	f.exec(t, `GRANT SELECT, UPDATE ON outbox_relay_failure TO `+role+`; GRANT SELECT, UPDATE (published_at) ON outbox_event TO `+role)
	f.exec(t, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable', current_database());
		EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$`)
	store = f.open(t, f.with(t, "role", role))
	if _, err := store.Requeue(t.Context(), id); err != nil {
		t.Error(err)
	}
	if _, err := store.Discard(t.Context(), id, "x"); err != nil {
		t.Error(err)
	}
}

func TestOpenSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	conn, err := pgx.Connect(t.Context(), f.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	f.exec(t, "DROP TABLE outbox_relay_failure")
	if _, err := parked.Open(t.Context(), conn, f.table); err == nil || !strings.Contains(err.Error(), `it is missing: "relay migrate"`) {
		t.Errorf("without the failure table: %v", err)
	}
	f.exec(t, "DROP TABLE outbox_event")
	if _, err := parked.Open(t.Context(), conn, f.table); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("without the outbox table: %v", err)
	}
}

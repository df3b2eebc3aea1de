package parked_test

import (
	"context"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-relay/outbox-relay/internal/parked"
	"github.com/outbox-relay/outbox-relay/internal/pgtable"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
	"github.com/outbox-relay/outbox-relay/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// quotedTable has names that need quoting and is not in schema public.
var quotedTable = pgtable.Name{Schema: `Order "Service"`, Table: `Outbox 'Event'`}

// fixture is a migrated database with a failure table to fill.
type fixture struct {
	url   string
	table pgtable.Name
	pool  *pgxpool.Pool // of the owner
	store *parked.Store
}

func newFixture(t *testing.T) *fixture {
	return newFixtureOf(t, pgtable.Name{Schema: "public", Table: "outbox_event"})
}

func newFixtureOf(t *testing.T, table pgtable.Name) *fixture {
	t.Helper()
	f := &fixture{url: testenv.Database(t), table: table}
	f.pool = testenv.Pool(t, f.url)
	if table.Schema != "public" {
		f.exec(t, "CREATE SCHEMA "+pgx.Identifier{table.Schema}.Sanitize())
	}
	if _, err := migrations.Up(t.Context(), f.url, table, migrations.Options{}); err != nil {
		t.Fatal(err)
	}
	f.store = f.open(t, f.url)
	return f
}

func (f *fixture) open(t *testing.T, databaseURL string) *parked.Store {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	store, err := parked.Open(t.Context(), conn, f.table)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// with returns the URL of the database with a parameter more.
func (f *fixture) with(t *testing.T, name, value string) string {
	t.Helper()
	u, err := url.Parse(f.url)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set(name, value)
	u.RawQuery = q.Encode()
	return u.String()
}

func (f *fixture) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := f.pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func value[T any](t *testing.T, f *fixture, sql string, args ...any) T {
	t.Helper()
	rows, err := f.pool.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func (f *fixture) failures() string { return f.table.Sibling(migrations.FailureTable) }

// fail inserts n rows with the key and records that they are in the state, with
// three attempts. It returns their ids.
func (f *fixture) fail(t *testing.T, n int, topic, key, state string) []int64 {
	t.Helper()
	rows, err := f.pool.Query(t.Context(), `WITH events AS (
		INSERT INTO `+f.table.Sanitize()+` (event_id, aggregate_type, aggregate_id, event_type, payload, topic, partition_key)
		SELECT gen_random_uuid(), 'order', '1', 'order.confirmed', '{"total": 12345678901234567890}', $2, $3 FROM generate_series(1, $1)
		RETURNING id, event_id)
		INSERT INTO `+f.failures()+` (row_id, event_id, topic, partition_key, kind, code, error, attempts, state, next_attempt_at)
		SELECT id, event_id, $2, $3, 'row', 'MESSAGE_TOO_LARGE', 'record of 5 bytes is above 4', 3, $4, now() + interval '1 hour' FROM events
		RETURNING row_id`, n, topic, key, state)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func (f *fixture) eventID(t *testing.T, row int64) string {
	t.Helper()
	return value[string](t, f, "SELECT event_id::text FROM "+f.table.Sanitize()+" WHERE id = $1", row)
}

func ids(t *testing.T, texts ...string) []parked.ID {
	t.Helper()
	parsed, err := parked.ParseIDs(texts)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// collect returns the row ids of a list.
func collect(t *testing.T, store *parked.Store, filter parked.Filter) []int64 {
	t.Helper()
	var rows []int64
	for r, err := range store.List(t.Context(), filter) {
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, r.RowID)
	}
	return rows
}

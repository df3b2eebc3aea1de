package migrations_test

import (
	"context"
	"crypto/rand"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
	"github.com/outbox-relay/outbox-relay/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m) }

var table = pgtable.Name{Schema: "public", Table: "outbox_event"}

const insertOne = `INSERT INTO public.outbox_event (event_id, aggregate_type, aggregate_id, event_type, payload, topic, partition_key)
VALUES (gen_random_uuid(), 'order', '1', 'order.confirmed', '{}', 'shop.order.confirmed', '1')`

func connect(tb testing.TB, url string) *pgx.Conn {
	tb.Helper()
	conn, err := pgx.Connect(tb.Context(), url)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// hang ends what waits for another session for ever.
const hang = 30 * time.Second

// exec runs a script of any number of statements.
func exec(tb testing.TB, conn *pgx.Conn, script string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), hang)
	defer cancel()
	if _, err := conn.PgConn().Exec(ctx, script).ReadAll(); err != nil {
		tb.Fatalf("%s: %v", script, err)
	}
}

func query[T any](tb testing.TB, conn *pgx.Conn, sql string, args ...any) T {
	tb.Helper()
	rows, err := conn.Query(tb.Context(), sql, args...)
	if err != nil {
		tb.Fatal(err)
	}
	value, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
	return value
}

func up(tb testing.TB, url string) migrations.Result {
	tb.Helper()
	result, err := migrations.Up(tb.Context(), url, table, migrations.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	return result
}

func inspect(tb testing.TB, conn *pgx.Conn) migrations.Report {
	tb.Helper()
	report, err := migrations.Inspect(tb.Context(), conn, table)
	if err != nil {
		tb.Fatal(err)
	}
	return report
}

// wantReady fails the test unless a relay could run on the table, with doorbell.
func wantReady(tb testing.TB, conn *pgx.Conn, table pgtable.Name) {
	tb.Helper()
	r, err := migrations.Inspect(tb.Context(), conn, table)
	if err != nil {
		tb.Fatal(err)
	}
	if !r.Exists || len(r.Differences) > 0 || r.IndexMissing || r.DoorbellFault != "" || r.FailureTableFault != "" || len(r.MissingPrivileges)+len(r.MissingFailurePrivileges) > 0 {
		tb.Errorf("table %s is not ready: %+v", table, r)
	}
}

const catalogSQL = `
SELECT string_agg(line, E'\n' ORDER BY line) FROM (
    SELECT 'relation ' || c.relname || ' ' || c.relkind::text || ' ' || c.relpersistence::text
    FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace
  UNION ALL
    SELECT 'column ' || a.attrelid::regclass || ' ' || a.attnum || ' ' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
           || ' ' || a.attnotnull || ' ' || a.attidentity::text || ' ' || coalesce(pg_get_expr(d.adbin, d.adrelid), '')
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'v', 'p') AND a.attnum > 0 AND NOT a.attisdropped
  UNION ALL
    SELECT 'constraint ' || conname || ' ' || pg_get_constraintdef(oid)
    FROM pg_constraint WHERE connamespace = 'public'::regnamespace
  UNION ALL
    SELECT 'index ' || pg_get_indexdef(i.indexrelid) || ' ' || i.indisvalid
    FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid WHERE c.relnamespace = 'public'::regnamespace
  UNION ALL
    SELECT 'trigger ' || pg_get_triggerdef(t.oid) || ' ' || t.tgenabled::text
    FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid WHERE c.relnamespace = 'public'::regnamespace AND NOT t.tgisinternal
  UNION ALL
    SELECT 'function ' || replace(pg_get_functiondef(p.oid), E'\n', ' ') FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace
) AS t (line)`

// catalog describes everything in schema public, for comparison.
func catalog(tb testing.TB, conn *pgx.Conn) string {
	tb.Helper()
	return query[string](tb, conn, catalogSQL)
}

// without removes the lines of a catalogue that contain the word.
func without(catalog, word string) string {
	var lines []string
	for line := range strings.SplitSeq(catalog, "\n") {
		if !strings.Contains(line, word) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// newRole makes a role without rights, and drops it when the test ends.
func newRole(tb testing.TB, owner *pgx.Conn) string {
	tb.Helper()
	role := "test_" + strings.ToLower(rand.Text())
	exec(tb, owner, "CREATE ROLE "+role)
	config := owner.Config()
	tb.Cleanup(func() {
		conn, err := pgx.ConnectConfig(context.Background(), config)
		if err != nil {
			tb.Error(err)
			return
		}
		defer func() { _ = conn.Close(context.Background()) }()
		if _, err := conn.Exec(context.Background(), "DROP OWNED BY "+role+" CASCADE"); err != nil {
			tb.Error(err)
		}
		if _, err := conn.Exec(context.Background(), "DROP ROLE "+role); err != nil {
			tb.Error(err)
		}
	})
	return role
}

// with adds a parameter to a database URL: one of pgx, or a setting of the session.
func with(tb testing.TB, databaseURL, name, value string) string {
	tb.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		tb.Fatal(err)
	}
	q := u.Query()
	q.Set(name, value)
	u.RawQuery = q.Encode()
	return u.String()
}

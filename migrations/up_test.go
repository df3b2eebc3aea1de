package migrations_test

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
	"github.com/outbox-relay/outbox-relay/migrations"
)

func TestUpOnAnEmptyDatabaseMakesTheRequiredTable(t *testing.T) {
	t.Parallel()
	url, byService := testenv.Database(t), testenv.Database(t)
	result := up(t, url)
	if !slices.Equal(result.Applied, []int64{1, 2, 3}) || result.IndexBuilt || result.UpToDate() {
		t.Errorf("Up gave %+v, want versions 1 to 3 applied", result)
	}
	conn := connect(t, url)
	wantReady(t, conn, table)
	exec(t, conn, insertOne)

	testenv.OutboxTable(t, byService)
	got := without(catalog(t, conn), "outbox_relay")
	if want := catalog(t, connect(t, byService)); got != want {
		t.Errorf("Up made\n%s\nwant\n%s", got, want)
	}
}

func TestUpASecondTimeChangesNothing(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	conn := connect(t, url)
	up(t, url)
	before := catalog(t, conn)
	if result := up(t, url); !result.UpToDate() {
		t.Errorf("the second Up gave %+v, want nothing to do", result)
	}
	if after := catalog(t, conn); after != before {
		t.Errorf("the second Up changed\n%s\ninto\n%s", before, after)
	}
}

func TestUpInSeveralProcessesAtOnceAppliesEachVersionOnce(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		applied []int64
	)
	for range 3 {
		wg.Go(func() {
			result, err := migrations.Up(t.Context(), url, table, migrations.Options{})
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			applied = append(applied, result.Applied...)
		})
	}
	wg.Wait()
	if !slices.Equal(applied, []int64{1, 2, 3}) {
		t.Errorf("applied %v in all, want each of 1 to 3 once", applied)
	}
	wantReady(t, connect(t, url), table)
}

func TestUpWaitsForAnotherProcessAndSaysSo(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	other := connect(t, url)
	const key = "(x'006f62786d696772'::bigint)"
	exec(t, other, "SELECT pg_advisory_lock"+key)
	log := testenv.Logs(t)
	done := upInBackground(t, url, migrations.Options{Logger: log.Logger})
	log.WaitFor(t, "another process is migrating this database, waiting for it")
	if got := inspect(t, other); got.Exists {
		t.Error("Up made the table without waiting")
	}
	exec(t, other, "SELECT pg_advisory_unlock"+key)
	if got := <-done; got.err != nil || got.result.UpToDate() {
		t.Errorf("Up gave %+v, %v, want it to go on", got.result, got.err)
	}
}

func TestUpLeavesATableOfTheServiceAsItIs(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	testenv.OutboxTable(t, url)
	conn := connect(t, url)
	exec(t, conn, insertOne)
	relid := query[uint32](t, conn, "SELECT 'public.outbox_event'::regclass::oid")
	before := catalog(t, conn)
	if result := up(t, url); !slices.Equal(result.Applied, []int64{1, 2, 3}) || result.IndexBuilt {
		t.Errorf("Up gave %+v, want versions 1 to 3 applied and no index built", result)
	}
	for line := range strings.Lines(before) {
		if !strings.Contains(catalog(t, conn), strings.TrimSpace(line)) {
			t.Errorf("Up removed or changed %s", line)
		}
	}
	if got := inspect(t, conn).Relid; got != relid {
		t.Errorf("Inspect gives oid %d, want %d", got, relid)
	}
	if n := query[int64](t, conn, "SELECT count(*) FROM public.outbox_event"); n != 1 {
		t.Errorf("%d rows are left, want 1", n)
	}
	wantReady(t, conn, table)
}

// A version table that says "applied" is no proof that the objects are there.
func TestUpMakesAgainWhatWasLost(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		damage  string
		applied []int64
	}{
		"the table, dropped by the service":        {"DROP TABLE outbox_event", []int64{1, 2, 3}},
		"the trigger, dropped by hand":             {"DROP TRIGGER outbox_relay_notify ON outbox_event", []int64{2}},
		"the trigger, disabled":                    {"ALTER TABLE outbox_event DISABLE TRIGGER outbox_relay_notify", []int64{2}},
		"the function, replaced":                   {"CREATE OR REPLACE FUNCTION outbox_relay_notify() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'", []int64{2}},
		"the failure table, dropped by hand":       {"DROP TABLE outbox_relay_failure", []int64{3}},
		"the index of the failure table, dropped":  {"DROP INDEX outbox_relay_failure_open", []int64{3}},
		"the trigger, lost with a table made anew": {"CREATE TABLE n (LIKE outbox_event INCLUDING ALL); DROP TABLE outbox_event; ALTER TABLE n RENAME TO outbox_event", []int64{2}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.Database(t)
			conn := connect(t, url)
			up(t, url)
			exec(t, conn, tt.damage)
			if result := up(t, url); !slices.Equal(result.Applied, tt.applied) {
				t.Errorf("Up applied %v, want %v", result.Applied, tt.applied)
			}
			wantReady(t, conn, table)
		})
	}
}

func TestUpWithNamesThatNeedQuoting(t *testing.T) {
	t.Parallel()
	tests := map[string]pgtable.Name{
		"capitals and spaces":         {Schema: "Order Service", Table: "Outbox Event"},
		"a reserved word":             {Schema: "user", Table: "order"},
		"dots":                        {Schema: "a.b", Table: "c.d"},
		"quotes and semicolons":       {Schema: `x"; DROP SCHEMA public; --`, Table: `it's ; -- "here";`},
		"a name like another default": {Schema: "s", Table: "public.outbox_relay_notify"},
		"marks of the migration tool": {Schema: "-- +goose Down", Table: "-- +goose StatementEnd"},
		"a backslash and dollars":     {Schema: `a\'b`, Table: `$$ LANGUAGE sql; $function$`},
		"63 bytes beyond ASCII":       {Schema: "s", Table: "x" + strings.Repeat("é", 31)},
	}
	for name, table := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.Database(t)
			conn := connect(t, url)
			exec(t, conn, "CREATE SCHEMA "+table.Sibling(table.Schema)[:strings.Index(table.Sibling(""), `.""`)])
			for range 2 {
				if _, err := migrations.Up(t.Context(), url, table, migrations.Options{}); err != nil {
					t.Fatal(err)
				}
				wantReady(t, conn, table)
			}
			if n := query[int64](t, conn, "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace"); n != 0 {
				t.Errorf("%d objects were made in schema public, want none", n)
			}
			if err := migrations.Down(t.Context(), url, table, migrations.Options{}); err != nil {
				t.Fatal(err)
			}
			var script strings.Builder
			if err := migrations.Print(&script, table); err != nil {
				t.Fatal(err)
			}
			exec(t, conn, script.String())
			wantReady(t, conn, table)
		})
	}
}

func TestUpRefuses(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		before string
		table  pgtable.Name
		want   string
	}{
		"a schema that does not exist": {
			"SELECT 1", pgtable.Name{Schema: "nowhere", Table: "outbox_event"}, `schema "nowhere" does not exist: create it`,
		},
		"a second table in one schema": {
			"CREATE TABLE first (LIKE outbox_event); CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; " +
				"CREATE TRIGGER outbox_relay_notify AFTER INSERT ON first EXECUTE FUNCTION f()",
			table, "already serves the outbox table public.first",
		},
		"no name": {"SELECT 1", pgtable.Name{}, "no table name given"},
		"a name that would end the quotation in the script": {
			"SELECT 1", pgtable.Name{Schema: "public", Table: "a$outbox_relay$"}, "must not contain $outbox_relay$",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.Database(t)
			testenv.OutboxTable(t, url)
			conn := connect(t, url)
			exec(t, conn, tt.before)
			before := catalog(t, conn)
			_, err := migrations.Up(t.Context(), url, tt.table, migrations.Options{})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Up gave %v, want an error with %q", err, tt.want)
			}
			if after := catalog(t, conn); after != before {
				t.Errorf("Up failed and changed\n%s\ninto\n%s", before, after)
			}
		})
	}
}

func TestUpWithoutTheRightsSaysWhichAreNeeded(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	testenv.OutboxTable(t, url)
	owner := connect(t, url)
	role := newRole(t, owner)
	exec(t, owner, "GRANT USAGE, CREATE ON SCHEMA public TO "+role)
	asRole := with(t, url, "role", role)

	_, err := migrations.Up(t.Context(), asRole, table, migrations.Options{})
	if err == nil || !strings.Contains(err.Error(), "TRIGGER on the table and CREATE on its schema") {
		t.Errorf("Up gave %v, want an error that names the rights", err)
	}
	exec(t, owner, "GRANT TRIGGER ON outbox_event TO "+role)
	up(t, asRole)
	wantReady(t, owner, table)
}

func TestUpInEveryExecModeAndIsolationOfTheRole(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url := with(t, testenv.Database(t), "default_query_exec_mode", mode)
			testenv.OutboxTable(t, url)
			conn := connect(t, url)
			exec(t, conn, `DROP INDEX ix_outbox_event_unpublished;
				DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable', current_database()); END $$`)
			if result := up(t, url); !result.IndexBuilt {
				t.Errorf("Up gave %+v, want the index built", result)
			}
			wantReady(t, connect(t, url), table)
		})
	}
}

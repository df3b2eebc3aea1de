package migrations_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
	"github.com/outbox-relay/outbox-relay/migrations"
)

func TestInspectWhereThereIsNoTable(t *testing.T) {
	t.Parallel()
	conn := connect(t, testenv.Database(t))
	if r := inspect(t, conn); !r.SchemaExists || r.Exists {
		t.Errorf("Inspect gave %+v, want a schema without table", r)
	}
	r, err := migrations.Inspect(t.Context(), conn, pgtable.Name{Schema: "nowhere", Table: "outbox_event"})
	if err != nil || r.SchemaExists || r.Exists {
		t.Errorf("Inspect gave %+v, %v, want no schema", r, err)
	}
}

func TestInspectNamesWhatIsWrongWithTheDoorbell(t *testing.T) {
	t.Parallel()
	const remake = "CREATE OR REPLACE TRIGGER outbox_relay_notify AFTER "
	tests := map[string]struct{ change, want string }{
		"dropped":              {"DROP TRIGGER outbox_relay_notify ON outbox_event", "is missing"},
		"disabled":             {"ALTER TABLE outbox_event DISABLE TRIGGER outbox_relay_notify", "is disabled"},
		"all disabled":         {"ALTER TABLE outbox_event DISABLE TRIGGER ALL", "is disabled"},
		"for replication only": {"ALTER TABLE outbox_event ENABLE REPLICA TRIGGER outbox_relay_notify", "for replication only"},
		"on updates too":       {remake + "INSERT OR UPDATE ON outbox_event FOR EACH STATEMENT EXECUTE FUNCTION outbox_relay_notify()", "does not fire after every INSERT statement and only there"},
		"for each row":         {remake + "INSERT ON outbox_event FOR EACH ROW EXECUTE FUNCTION outbox_relay_notify()", "does not fire after every INSERT statement"},
		"with a condition":     {remake + "INSERT ON outbox_event FOR EACH STATEMENT WHEN (current_user = 'x') EXECUTE FUNCTION outbox_relay_notify()", "has another condition"},
		"without condition":    {remake + "INSERT ON outbox_event FOR EACH STATEMENT EXECUTE FUNCTION outbox_relay_notify()", "has another condition"},
		"by another's bell": {`CREATE TABLE other (id int); ` + remake + `INSERT ON outbox_event FOR EACH STATEMENT
			WHEN (NOT pg_try_advisory_xact_lock_shared(1868724322, 'other'::regclass::oid::int4)) EXECUTE FUNCTION outbox_relay_notify()`, "has another condition"},
		"another body":   {"CREATE OR REPLACE FUNCTION outbox_relay_notify() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'", "is of another version"},
		"always enabled": {"ALTER TABLE outbox_event ENABLE ALWAYS TRIGGER outbox_relay_notify", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.Database(t)
			up(t, url)
			conn := connect(t, url)
			exec(t, conn, tt.change)
			got := inspect(t, conn).DoorbellFault
			if !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") {
				t.Errorf("Inspect says %q, want %q", got, tt.want)
			}
		})
	}
}

func TestInspectNamesThePrivilegesThatAreMissing(t *testing.T) {
	t.Parallel()
	const usage, read, update = `USAGE on schema "public"`, "SELECT", "UPDATE (published_at)"
	tests := map[string]struct {
		grant string // with $ for the role
		want  []string
	}{
		"no rights at all": {"REVOKE ALL ON SCHEMA public FROM PUBLIC", []string{usage, read, update}},
		"only reading":     {"GRANT SELECT ON outbox_event TO $", []string{update}},
		"only marking":     {"GRANT UPDATE (published_at) ON outbox_event TO $", []string{read}},
		"some columns":     {"GRANT SELECT (id, event_id, aggregate_type, aggregate_id, event_type, created_at, published_at), UPDATE ON outbox_event TO $", []string{"SELECT (payload, topic, partition_key)"}},
		"all it needs":     {"GRANT SELECT, UPDATE (published_at) ON outbox_event TO $", nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.Database(t)
			up(t, url)
			owner := connect(t, url)
			role := newRole(t, owner)
			exec(t, owner, strings.ReplaceAll(tt.grant, "$", role))
			r := inspect(t, connect(t, with(t, url, "role", role)))
			if !slices.Equal(r.MissingPrivileges, tt.want) {
				t.Errorf("Inspect names %q, want %q", r.MissingPrivileges, tt.want)
			}
			if !r.Exists || len(r.Differences) > 0 || r.IndexMissing || r.DoorbellFault != "" {
				t.Errorf("Inspect gave %+v, want no other fault", r)
			}
		})
	}
}

func TestInspectTellsWhetherRowSecurityApplies(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	up(t, url)
	owner := connect(t, url)
	role := newRole(t, owner)
	relay := connect(t, with(t, url, "role", role))
	if inspect(t, relay).RowSecurity {
		t.Error("row security is reported where there is none")
	}
	exec(t, owner, "ALTER TABLE outbox_event ENABLE ROW LEVEL SECURITY")
	if !inspect(t, relay).RowSecurity {
		t.Error("row security is not reported")
	}
}

func TestInspectReadsTheCacheOfTheSequence(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		change string
		want   int64
	}{
		"identity as made":        {"SELECT 1", 1},
		"identity with cache":     {"ALTER SEQUENCE outbox_event_id_seq CACHE 20", 20},
		"serial":                  {"CREATE SEQUENCE s CACHE 30 OWNED BY outbox_event.id; ALTER TABLE outbox_event ALTER id DROP IDENTITY, ALTER id SET DEFAULT nextval('s')", 30},
		"a sequence of its own":   {"CREATE SEQUENCE s CACHE 40; ALTER TABLE outbox_event ALTER id DROP IDENTITY, ALTER id SET DEFAULT nextval('s')", 40},
		"no sequence":             {"ALTER TABLE outbox_event ALTER id DROP IDENTITY", 0},
		"a cache that is not ids": {"CREATE SEQUENCE s CACHE 50; ALTER TABLE outbox_event ALTER topic SET DEFAULT nextval('s')::text", 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.Database(t)
			testenv.OutboxTable(t, url)
			conn := connect(t, url)
			exec(t, conn, tt.change)
			if got := inspect(t, conn).SequenceCache; got != tt.want {
				t.Errorf("Inspect gives a cache of %d, want %d", got, tt.want)
			}
		})
	}
}

func TestInspectThroughAPoolInAReadOnlyTransaction(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	up(t, url)
	pool := testenv.Pool(t, with(t, url, "default_transaction_read_only", "on"))
	r, err := migrations.Inspect(t.Context(), pool, table)
	if err != nil || !r.Exists || r.DoorbellFault != "" {
		t.Errorf("Inspect gave %+v, %v, want a table with doorbell", r, err)
	}
}

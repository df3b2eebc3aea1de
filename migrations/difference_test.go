package migrations_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
	"github.com/outbox-relay/outbox-relay/migrations"
)

func TestDifferencesAreNamedAndNothingIsChanged(t *testing.T) {
	t.Parallel()
	const (
		idNotUnique      = "column id is not unique, must be the primary key or have a unique index of its own, valid and without condition"
		eventIDNotUnique = "column event_id is not UNIQUE, must have a unique constraint or index of its own, valid and without condition: an event written twice has to fail"
		dropUnique       = "ALTER TABLE outbox_event DROP CONSTRAINT outbox_event_event_id_key;"
	)
	tests := map[string]struct {
		change string
		want   []string
	}{
		"json payload":             {"ALTER TABLE outbox_event ALTER payload TYPE json", []string{"column payload is json, must be jsonb"}},
		"varchar topic":            {"ALTER TABLE outbox_event ALTER topic TYPE varchar(255)", []string{"column topic is character varying(255), must be text"}},
		"text event_id":            {"ALTER TABLE outbox_event ALTER event_id TYPE text", []string{"column event_id is text, must be uuid"}},
		"integer id":               {"ALTER TABLE outbox_event ALTER id TYPE integer", []string{"column id is integer, must be bigint"}},
		"created_at without zone":  {"ALTER TABLE outbox_event ALTER created_at TYPE timestamp", []string{"column created_at is timestamp without time zone, must be timestamp with time zone"}},
		"missing column":           {"ALTER TABLE outbox_event DROP partition_key", []string{"column partition_key is missing, must be text"}},
		"nullable topic":           {"ALTER TABLE outbox_event ALTER topic DROP NOT NULL", []string{"column topic is nullable, must be NOT NULL"}},
		"published_at NOT NULL":    {"ALTER TABLE outbox_event ALTER published_at SET NOT NULL", []string{"column published_at is NOT NULL, must be nullable"}},
		"published_at by default":  {"ALTER TABLE outbox_event ALTER published_at SET DEFAULT now()", []string{"column published_at has a default, must have none: rows would look published when they are written"}},
		"id not unique":            {"ALTER TABLE outbox_event DROP CONSTRAINT outbox_event_pkey", []string{idNotUnique}},
		"event_id not unique":      {dropUnique, []string{eventIDNotUnique}},
		"event_id unique in part":  {dropUnique + "CREATE UNIQUE INDEX u ON outbox_event (event_id) WHERE published_at IS NULL", []string{eventIDNotUnique}},
		"event_id unique by topic": {dropUnique + "CREATE UNIQUE INDEX u ON outbox_event (event_id, topic)", []string{eventIDNotUnique}},
		"event_id unique as text":  {dropUnique + "CREATE UNIQUE INDEX u ON outbox_event ((event_id::text))", []string{eventIDNotUnique}},
		"index name taken": {
			"DROP INDEX ix_outbox_event_unpublished; CREATE INDEX ix_outbox_event_unpublished ON outbox_event (created_at) WHERE published_at IS NULL",
			[]string{"ix_outbox_event_unpublished is not a btree index of this table beginning with id WHERE published_at IS NULL, but has the name that such an index gets: rename or drop it"},
		},
		"unlogged": {"ALTER TABLE outbox_event SET UNLOGGED", []string{"the table is UNLOGGED, must be LOGGED: a crash of the server would empty it"}},
		"a view": {
			"ALTER TABLE outbox_event RENAME TO t; CREATE VIEW outbox_event AS SELECT * FROM t",
			[]string{"public.outbox_event is a view, must be a table"},
		},
		"partitioned": {
			"DROP INDEX ix_outbox_event_unpublished; ALTER TABLE outbox_event RENAME TO t; CREATE TABLE outbox_event (LIKE t, PRIMARY KEY (id, created_at)) PARTITION BY RANGE (created_at)",
			[]string{idNotUnique, eventIDNotUnique},
		},
		"several at once": {
			"ALTER TABLE outbox_event ALTER payload TYPE json, ALTER topic TYPE varchar, ALTER topic DROP NOT NULL, DROP published_at",
			[]string{
				"column payload is json, must be jsonb",
				"column topic is character varying, must be text",
				"column topic is nullable, must be NOT NULL",
				"column published_at is missing, must be timestamp with time zone",
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.Database(t)
			testenv.OutboxTable(t, url)
			conn := connect(t, url)
			exec(t, conn, tt.change)
			before := catalog(t, conn)

			_, err := migrations.Up(t.Context(), url, table, migrations.Options{})
			difference, ok := errors.AsType[*migrations.DifferenceError](err)
			if !ok {
				t.Fatalf("Up gave %v, want a DifferenceError", err)
			}
			if !slices.Equal(difference.Differences, tt.want) {
				t.Errorf("Up names\n%q\nwant\n%q", difference.Differences, tt.want)
			}
			if after := catalog(t, conn); after != before {
				t.Errorf("Up changed\n%s\ninto\n%s", before, after)
			}
			if got := inspect(t, conn).Differences; !slices.Equal(got, tt.want) {
				t.Errorf("Inspect names\n%q\nwant\n%q", got, tt.want)
			}
		})
	}
}

func TestWhatIsTheServicesBusinessIsNoDifference(t *testing.T) {
	t.Parallel()
	const reindex = "DROP INDEX ix_outbox_event_unpublished; CREATE INDEX mine ON outbox_event "
	tests := map[string]string{
		"identity BY DEFAULT":               "ALTER TABLE outbox_event ALTER id SET GENERATED BY DEFAULT",
		"id drawn by the application":       "ALTER TABLE outbox_event ALTER id DROP IDENTITY",
		"id from a sequence":                "CREATE SEQUENCE s; ALTER TABLE outbox_event ALTER id DROP IDENTITY, ALTER id SET DEFAULT nextval('s')",
		"event_id as the primary key":       "ALTER TABLE outbox_event DROP CONSTRAINT outbox_event_pkey, DROP CONSTRAINT outbox_event_event_id_key, ADD PRIMARY KEY (event_id), ADD UNIQUE (id)",
		"unique index, not constraint":      "ALTER TABLE outbox_event DROP CONSTRAINT outbox_event_event_id_key; CREATE UNIQUE INDEX u ON outbox_event (event_id)",
		"an extra column, even NOT NULL":    "ALTER TABLE outbox_event ADD tenant text NOT NULL",
		"extra constraint, index, trigger":  "ALTER TABLE outbox_event ADD CHECK (topic <> ''); CREATE INDEX ON outbox_event (created_at); CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; CREATE TRIGGER t BEFORE INSERT ON outbox_event FOR EACH ROW EXECUTE FUNCTION f()",
		"created_at without default":        "ALTER TABLE outbox_event ALTER created_at DROP DEFAULT",
		"another name of the index":         reindex + "(id) WHERE published_at IS NULL",
		"a covering index":                  reindex + "(id, partition_key) INCLUDE (topic) WHERE published_at IS NULL",
		"a topic generated from the others": "ALTER TABLE outbox_event DROP topic, ADD topic text NOT NULL GENERATED ALWAYS AS ('shop.' || aggregate_type) STORED",
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.Database(t)
			testenv.OutboxTable(t, url)
			conn := connect(t, url)
			exec(t, conn, change)
			if result := up(t, url); result.IndexBuilt {
				t.Error("Up built an index beside the service's own")
			}
			wantReady(t, conn, table)
		})
	}
}

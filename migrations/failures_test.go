package migrations_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
	"github.com/outbox-relay/outbox-relay/migrations"
)

const insertFailure = `INSERT INTO outbox_relay_failure (row_id, event_id, topic, partition_key, kind, code, error, attempts, state)
VALUES (1, gen_random_uuid(), 'shop.order.confirmed', '1', 'row', 'MESSAGE_TOO_LARGE', 'too large', 1, 'parked')`

func TestTheFailureTableHasTheseColumnsInThisOrder(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	up(t, url)
	const want = "row_id bigint, event_id uuid, topic text, partition_key text, kind text, code text, error text, " +
		"attempts integer, first_failed_at timestamp with time zone, last_failed_at timestamp with time zone, " +
		"next_attempt_at timestamp with time zone, state text, reason text, changed_at timestamp with time zone, changed_by text"
	got := query[string](t, connect(t, url), `SELECT string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' ORDER BY attnum)
		FROM pg_attribute WHERE attrelid = 'outbox_relay_failure'::regclass AND attnum > 0`)
	if got != want {
		t.Errorf("the columns are\n%s\nwant\n%s", got, want)
	}
}

func TestAFailureTableThatDiffersIsNamedAndLeftAlone(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ change, want string }{
		"a column is missing":       {"ALTER TABLE outbox_relay_failure DROP reason", `column "reason text" is missing or differs`},
		"a column has another type": {"ALTER TABLE outbox_relay_failure ALTER event_id TYPE text", `column "event_id uuid NOT NULL" is missing or differs`},
		"a column is nullable":      {"ALTER TABLE outbox_relay_failure ALTER topic DROP NOT NULL", `column "topic text NOT NULL" is missing or differs`},
		"a default is missing":      {"ALTER TABLE outbox_relay_failure ALTER next_attempt_at DROP DEFAULT", "next_attempt_at"},
		"a column too much":         {"ALTER TABLE outbox_relay_failure ADD tenant text NOT NULL", `column "tenant text NOT NULL" is not the relay's`},
		"no primary key":            {"ALTER TABLE outbox_relay_failure DROP CONSTRAINT outbox_relay_failure_pkey", "row_id is not unique"},
		"unlogged":                  {"ALTER TABLE outbox_relay_failure SET UNLOGGED", "UNLOGGED"},
		"another index":             {"DROP INDEX outbox_relay_failure_open; CREATE INDEX outbox_relay_failure_open ON outbox_relay_failure (row_id)", "outbox_relay_failure_open is not its index"},
		"a view":                    {"ALTER TABLE outbox_relay_failure RENAME TO f; CREATE VIEW outbox_relay_failure AS SELECT * FROM f", "it is a view, must be a table"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.Database(t)
			up(t, url)
			conn := connect(t, url)
			exec(t, conn, tt.change)
			before := catalog(t, conn)
			if got := inspect(t, conn).FailureTableFault; !strings.Contains(got, tt.want) {
				t.Errorf("Inspect says %q, want %q", got, tt.want)
			}
			_, err := migrations.Up(t.Context(), url, table, migrations.Options{})
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "rename or drop it") {
				t.Errorf("Up gave %v, want an error that names the difference", err)
			}
			if after := catalog(t, conn); after != before {
				t.Errorf("Up changed\n%s\ninto\n%s", before, after)
			}
		})
	}
}

func TestInspectNamesTheRightsThatAreMissingOnTheFailureTable(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	up(t, url)
	owner := connect(t, url)
	role := newRole(t, owner)
	relay := connect(t, with(t, url, "role", role))
	if got, want := inspect(t, relay).MissingFailurePrivileges, []string{"SELECT", "INSERT", "UPDATE", "DELETE"}; !slices.Equal(got, want) {
		t.Errorf("Inspect names %q, want %q", got, want)
	}
	exec(t, owner, "GRANT SELECT, UPDATE ON outbox_relay_failure TO "+role)
	if got, want := inspect(t, relay).MissingFailurePrivileges, []string{"INSERT", "DELETE"}; !slices.Equal(got, want) {
		t.Errorf("Inspect names %q, want %q", got, want)
	}
	exec(t, owner, "GRANT INSERT, DELETE ON outbox_relay_failure TO "+role)
	if got := inspect(t, relay).MissingFailurePrivileges; len(got) > 0 {
		t.Errorf("Inspect names %q, want none", got)
	}
}

func TestDownRefusesWhileTheFailureTableHoldsHistory(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	up(t, url)
	conn := connect(t, url)
	exec(t, conn, insertFailure)
	err := migrations.Down(t.Context(), url, table, migrations.Options{})
	if err == nil || !strings.Contains(err.Error(), "holds the history") || !strings.Contains(err.Error(), "empty it") {
		t.Errorf("Down gave %v, want an error that says what to do", err)
	}
	wantReady(t, conn, table)
	exec(t, conn, "TRUNCATE outbox_relay_failure")
	if err := migrations.Down(t.Context(), url, table, migrations.Options{}); err != nil {
		t.Error(err)
	}
}

func TestTheRelaysOwnTablesAreNoOutbox(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"outbox_relay_failure", "outbox_relay_version"} {
		_, err := migrations.Up(t.Context(), testenv.Database(t), pgtable.Name{Schema: "public", Table: name}, migrations.Options{})
		if err == nil || !strings.Contains(err.Error(), "makes a table of this name for itself") {
			t.Errorf("Up for %s gave %v, want an error", name, err)
		}
	}
}

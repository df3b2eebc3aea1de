package migrations

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
)

// FailureTable is the name of the table that tells of rows that could not be
// published. It stands in the schema of the outbox table.
const FailureTable = "outbox_relay_failure"

const (
	openFailures    = "outbox_relay_failure_open" // its partial index
	failuresVersion = 3
)

var failureColumns = []string{
	"row_id bigint NOT NULL",
	"event_id uuid NOT NULL",
	"topic text NOT NULL",
	"partition_key text NOT NULL",
	"kind text NOT NULL",
	"code text NOT NULL",
	"error text NOT NULL",
	"attempts integer NOT NULL",
	"first_failed_at timestamp with time zone NOT NULL DEFAULT now()",
	"last_failed_at timestamp with time zone NOT NULL DEFAULT now()",
	"next_attempt_at timestamp with time zone NOT NULL DEFAULT now()",
	"state text NOT NULL",
	"reason text",
	"changed_at timestamp with time zone",
	"changed_by text",
}

// failureTableSQL describes the table as it is. Its own index is looked for by
// name, in the schema, because a name that is taken is in the way of it.
const failureTableSQL = `
SELECT c.relkind::text,
       c.relpersistence::text,
       ARRAY(SELECT pg_catalog.concat_ws(' ', a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod),
                        CASE WHEN a.attnotnull THEN 'NOT NULL' END,
                        'DEFAULT ' || pg_catalog.pg_get_expr(d.adbin, d.adrelid))
             FROM pg_catalog.pg_attribute a
             LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
             ORDER BY a.attnum),
       EXISTS (SELECT
               FROM pg_catalog.pg_index i
               JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
               WHERE i.indrelid = c.oid AND a.attname = 'row_id' AND i.indnkeyatts = 1
                 AND i.indisunique AND i.indisvalid AND i.indpred IS NULL),
       o.oid IS NOT NULL,
       coalesce((SELECT i.indisvalid AND a.attname = 'row_id'
                        AND pg_catalog.pg_get_expr(i.indpred, i.indrelid) = '(state = ANY (ARRAY[''waiting''::text, ''parked''::text]))'
                 FROM pg_catalog.pg_index i
                 JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
                 WHERE i.indexrelid = o.oid AND i.indrelid = c.oid), false),
       ARRAY(SELECT p FROM pg_catalog.unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p
             WHERE NOT pg_catalog.has_table_privilege(c.oid, p))
FROM pg_catalog.pg_class c
LEFT JOIN pg_catalog.pg_class o ON o.relnamespace = c.relnamespace AND o.relname = '` + openFailures + `'
WHERE c.relnamespace = (SELECT n.oid FROM pg_catalog.pg_namespace n WHERE n.nspname = $1::text)
  AND c.relname = '` + FailureTable + `'`

func (r *Report) inspectFailures(ctx context.Context, q Querier, table pgtable.Name) error {
	var (
		kind, persistence                string
		columns                          []string
		unique, openExists, openIsAsMade bool
	)
	err := q.QueryRow(ctx, failureTableSQL, table.Schema).
		Scan(&kind, &persistence, &columns, &unique, &openExists, &openIsAsMade, &r.MissingFailurePrivileges)
	if errors.Is(err, pgx.ErrNoRows) {
		r.FailureTableFault, r.failuresLost = "it is missing", true
		return nil
	}
	if err != nil {
		return err
	}
	if kind != "r" {
		r.FailureTableFault, r.MissingFailurePrivileges = "it is "+kindName(kind)+", must be a table", nil
		return nil
	}
	var faults []string
	for _, column := range failureColumns {
		if !slices.Contains(columns, column) {
			faults = append(faults, fmt.Sprintf("column %q is missing or differs", column))
		}
	}
	for _, column := range columns {
		name, _, _ := strings.Cut(column, " ")
		if !slices.ContainsFunc(failureColumns, func(c string) bool { return strings.HasPrefix(c, name+" ") }) {
			faults = append(faults, fmt.Sprintf("column %q is not the relay's", column))
		}
	}
	if !unique {
		faults = append(faults, "row_id is not unique, must be the primary key")
	}
	if persistence == "u" {
		faults = append(faults, "it is UNLOGGED, must be LOGGED: a crash of the server would empty it")
	}
	if openExists && !openIsAsMade {
		faults = append(faults, openFailures+" is not its index on (row_id) WHERE state IN ('waiting', 'parked')")
	}
	if len(faults) == 0 && !openExists {
		faults, r.failuresLost = []string{"its index " + openFailures + " is missing"}, true
	}
	r.FailureTableFault = strings.Join(faults, "; ")
	return nil
}

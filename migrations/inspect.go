package migrations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
)

// Querier is what [Inspect] reads with: a *pgxpool.Pool, a *pgx.Conn or a pgx.Tx.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Report is what [Inspect] found.
type Report struct {
	// SchemaExists and Exists tell whether the schema and the table are there.
	// Without the table, nothing below is filled in but what concerns the failure
	// table.
	SchemaExists, Exists bool
	// Relid is the oid of the table, from which the key and the channel of the
	// doorbell derive.
	Relid uint32
	// Differences names everything in which the table is not the one that the
	// relay needs, a sentence each. The relay must not run on such a table, and
	// Up does not touch it.
	Differences []string
	// IndexMissing tells that no valid index serves the walk over unpublished
	// rows. The relay must not run without; Up builds it.
	IndexMissing bool
	// DoorbellFault says in which way the trigger or its function is not as Up
	// makes it: missing, disabled, of another version. It is empty when all is
	// well. With a fault the relay works, but finds new rows by polling only.
	DoorbellFault string
	// FailureTableFault says in which way the failure table is not as Up makes it:
	// missing, or another one. It is empty when all is well. The relay must not
	// run with a fault; Up makes what is missing.
	FailureTableFault string
	// MissingFailurePrivileges names what the connected role lacks on the failure
	// table for running the relay, of SELECT, INSERT, UPDATE and DELETE.
	MissingFailurePrivileges []string
	// MissingPrivileges names what the connected role lacks for running the
	// relay, as in "UPDATE (published_at)".
	MissingPrivileges []string
	// RowSecurity tells that row-level security applies to the connected role:
	// rows that its policies hide are never published.
	RowSecurity bool
	// SequenceCache is the CACHE of the sequence that draws the ids, and 0 when
	// no sequence is known. Above 1, ids do not grow in the order of the inserts,
	// so that events of one key may be published out of order.
	SequenceCache int64

	// invalidIndex tells that a failed CREATE INDEX CONCURRENTLY has left an
	// index of the name that Up needs.
	invalidIndex bool
	// failuresLost tells that Up mends the FailureTableFault by making the table
	// or its index.
	failuresLost bool
}

// minVersion is Postgres 14: the first with CREATE OR REPLACE TRIGGER and
// idle_session_timeout.
const minVersion = 140000

// headSQL reads the catalogue by name instead of casting to regclass, which
// fails for a role without USAGE on the schema.
const headSQL = `
SELECT pg_catalog.current_setting('server_version_num')::int4,
       pg_catalog.current_setting('server_version'),
       n.oid IS NOT NULL,
       coalesce(c.oid, 0)::int8,
       coalesce(c.relkind::text, ''),
       coalesce(c.relpersistence::text, ''),
       coalesce(pg_catalog.has_schema_privilege(n.oid, 'USAGE'), false),
       coalesce(pg_catalog.row_security_active(c.oid), false)
FROM (VALUES (1)) AS always_a_row
LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = $1::text
LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = $2::text`

// Inspect compares the database with what the relay needs. It only reads the
// catalogue, so it works for a role without any right on the table. An error
// means that it could not look, or that the server is older than Postgres 14;
// what it finds wrong is in the Report.
func Inspect(ctx context.Context, q Querier, table pgtable.Name) (Report, error) {
	report, err := inspect(ctx, q, table)
	if err != nil {
		return Report{}, fmt.Errorf("inspect table %s: %w", table, err)
	}
	return report, nil
}

func inspect(ctx context.Context, q Querier, table pgtable.Name) (Report, error) {
	var (
		r                          Report
		number                     int
		version, kind, persistence string
		relid                      int64
		usage                      bool
	)
	err := q.QueryRow(ctx, headSQL, table.Schema, table.Table).
		Scan(&number, &version, &r.SchemaExists, &relid, &kind, &persistence, &usage, &r.RowSecurity)
	if err != nil {
		return r, err
	}
	if err := checkVersion(number, version); err != nil {
		return r, err
	}
	if r.SchemaExists {
		if err := r.inspectFailures(ctx, q, table); err != nil {
			return r, err
		}
	}
	if r.Relid = uint32(relid); relid == 0 {
		return r, nil
	}
	r.Exists = true
	if kind != "r" && kind != "p" {
		r.Differences = []string{fmt.Sprintf("%s is %s, must be a table", table, kindName(kind))}
		return r, nil
	}
	if persistence == "u" {
		r.Differences = append(r.Differences, "the table is UNLOGGED, must be LOGGED: a crash of the server would empty it")
	}
	if !usage {
		r.MissingPrivileges = append(r.MissingPrivileges, "USAGE on schema "+quote(table.Schema))
	}
	columns, err := readColumns(ctx, q, relid)
	if err != nil {
		return r, err
	}
	r.Differences = append(r.Differences, compareColumns(columns)...)
	r.MissingPrivileges = append(r.MissingPrivileges, missingPrivileges(columns)...)
	if err := r.inspectIndexes(ctx, q, table, relid, columns); err != nil {
		return r, err
	}
	if err := r.inspectDoorbell(ctx, q, relid); err != nil {
		return r, err
	}
	r.SequenceCache, err = readSequenceCache(ctx, q, relid)
	return r, err
}

func checkVersion(number int, version string) error {
	if number < minVersion {
		return fmt.Errorf("the server is Postgres %s, the relay needs 14 or later: upgrade the server", version)
	}
	return nil
}

func kindName(relkind string) string {
	switch relkind {
	case "v":
		return "a view"
	case "m":
		return "a materialized view"
	case "f":
		return "a foreign table"
	case "S":
		return "a sequence"
	case "i", "I":
		return "an index"
	case "c":
		return "a composite type"
	default:
		return "a relation of kind " + relkind
	}
}

func quote(identifier string) string { return pgx.Identifier{identifier}.Sanitize() }

package migrations

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// column is one that the relay needs, typed as format_type spells it.
type column struct {
	name, typ string
	notNull   bool
}

var required = []column{
	{"id", "bigint", true},
	{"event_id", "uuid", true},
	{"aggregate_type", "text", true},
	{"aggregate_id", "text", true},
	{"event_type", "text", true},
	{"payload", "jsonb", true},
	{"topic", "text", true},
	{"partition_key", "text", true},
	{"created_at", "timestamp with time zone", true},
	{"published_at", "timestamp with time zone", false},
}

// found is a column of the table as it is. hasDefault is true for a generated
// column too.
type found struct {
	column
	hasDefault         bool
	canRead, canUpdate bool
}

const columnsSQL = `
SELECT a.attname::text,
       pg_catalog.format_type(a.atttypid, a.atttypmod),
       a.attnotnull,
       a.atthasdef,
       pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'SELECT'),
       pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'UPDATE')
FROM pg_catalog.pg_attribute a
WHERE a.attrelid = $1::int8::oid AND a.attnum > 0 AND NOT a.attisdropped`

func readColumns(ctx context.Context, q Querier, relid int64) (map[string]found, error) {
	rows, err := q.Query(ctx, columnsSQL, relid)
	if err != nil {
		return nil, err
	}
	columns := make(map[string]found)
	var f found
	_, err = pgx.ForEachRow(rows, []any{&f.name, &f.typ, &f.notNull, &f.hasDefault, &f.canRead, &f.canUpdate}, func() error {
		columns[f.name] = f
		return nil
	})
	return columns, err
}

func compareColumns(columns map[string]found) []string {
	var differences []string
	add := func(format string, args ...any) {
		differences = append(differences, fmt.Sprintf(format, args...))
	}
	for _, want := range required {
		have, ok := columns[want.name]
		if !ok {
			add("column %s is missing, must be %s", want.name, want.typ)
			continue
		}
		if have.typ != want.typ {
			add("column %s is %s, must be %s", want.name, have.typ, want.typ)
		}
		if want.notNull && !have.notNull {
			add("column %s is nullable, must be NOT NULL", want.name)
		}
		if !want.notNull && have.notNull {
			add("column %s is NOT NULL, must be nullable", want.name)
		}
		if want.name == "published_at" && have.hasDefault {
			add("column published_at has a default, must have none: rows would look published when they are written")
		}
	}
	return differences
}

// missingPrivileges looks at columns one by one, since rights may be granted for
// columns only. UPDATE (published_at) is enough for FOR UPDATE as well.
func missingPrivileges(columns map[string]found) []string {
	var missing, unreadable []string
	present := 0
	for _, want := range required {
		have, ok := columns[want.name]
		if !ok {
			continue
		}
		present++
		if !have.canRead {
			unreadable = append(unreadable, want.name)
		}
	}
	switch len(unreadable) {
	case 0:
	case present:
		missing = append(missing, "SELECT")
	default:
		missing = append(missing, "SELECT ("+strings.Join(unreadable, ", ")+")")
	}
	if mark, ok := columns["published_at"]; ok && !mark.canUpdate {
		missing = append(missing, "UPDATE (published_at)")
	}
	return missing
}

// sequenceSQL finds the sequence behind id, whether the column owns it (identity,
// serial) or only its default uses it.
const sequenceSQL = `
SELECT coalesce(max(s.seqcache), 0)
FROM pg_catalog.pg_sequence s
WHERE s.seqrelid IN (
    SELECT d.objid
    FROM pg_catalog.pg_attribute a
    JOIN pg_catalog.pg_depend d ON d.refclassid = 'pg_catalog.pg_class'::regclass
        AND d.refobjid = a.attrelid AND d.refobjsubid = a.attnum
        AND d.classid = 'pg_catalog.pg_class'::regclass AND d.deptype IN ('a', 'i')
    WHERE a.attrelid = $1::int8::oid AND a.attname = 'id'
    UNION ALL
    SELECT d.refobjid
    FROM pg_catalog.pg_attribute a
    JOIN pg_catalog.pg_attrdef ad ON ad.adrelid = a.attrelid AND ad.adnum = a.attnum
    JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_attrdef'::regclass
        AND d.objid = ad.oid AND d.refclassid = 'pg_catalog.pg_class'::regclass
    WHERE a.attrelid = $1::int8::oid AND a.attname = 'id'
)`

func readSequenceCache(ctx context.Context, q Querier, relid int64) (cache int64, err error) {
	err = q.QueryRow(ctx, sequenceSQL, relid).Scan(&cache)
	return cache, err
}

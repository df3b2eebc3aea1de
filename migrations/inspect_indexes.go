package migrations

import (
	"context"
	"fmt"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
)

// indexesSQL counts only indexes that a plan can use: one that CREATE INDEX
// CONCURRENTLY is building or has left behind is not valid. An index over
// several columns makes none of them unique by itself.
const indexesSQL = `
WITH usable AS (
    SELECT a.attname AS first_column,
           i.indisunique AND i.indnkeyatts = 1 AND i.indpred IS NULL AS makes_unique,
           pg_catalog.pg_get_expr(i.indpred, i.indrelid) = '(published_at IS NULL)' AS unpublished
    FROM pg_catalog.pg_index i
    JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
    JOIN pg_catalog.pg_am am ON am.oid = c.relam AND am.amname = 'btree'
    JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
    WHERE i.indrelid = $1::int8::oid AND i.indisvalid AND i.indisready AND i.indislive
)
SELECT EXISTS (SELECT FROM usable WHERE first_column = 'id' AND makes_unique),
       EXISTS (SELECT FROM usable WHERE first_column = 'event_id' AND makes_unique),
       EXISTS (SELECT FROM usable WHERE first_column = 'id' AND unpublished)`

// holderSQL tells who has the name that the partial index needs.
const holderSQL = `
SELECT count(*) > 0,
       coalesce(bool_or(i.indrelid = $1::int8::oid AND NOT i.indisvalid), false)
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_index i ON i.indexrelid = c.oid
WHERE n.nspname = $2::text AND c.relname = $3::text`

func (r *Report) inspectIndexes(ctx context.Context, q Querier, table pgtable.Name, relid int64, columns map[string]found) error {
	var idUnique, eventIDUnique, unpublished bool
	if err := q.QueryRow(ctx, indexesSQL, relid).Scan(&idUnique, &eventIDUnique, &unpublished); err != nil {
		return err
	}
	if _, ok := columns["id"]; ok && !idUnique {
		r.Differences = append(r.Differences, "column id is not unique, must be the primary key or have a unique index of its own, valid and without condition")
	}
	if _, ok := columns["event_id"]; ok && !eventIDUnique {
		r.Differences = append(r.Differences, "column event_id is not UNIQUE, must have a unique constraint or index of its own, valid and without condition: an event written twice has to fail")
	}
	if r.IndexMissing = !unpublished; unpublished {
		return nil
	}
	var taken bool
	name := indexName(table)
	if err := q.QueryRow(ctx, holderSQL, relid, table.Schema, name).Scan(&taken, &r.invalidIndex); err != nil {
		return err
	}
	if taken && !r.invalidIndex {
		r.Differences = append(r.Differences, fmt.Sprintf("%s is not a btree index of this table beginning with id WHERE published_at IS NULL, but has the name that such an index gets: rename or drop it", name))
	}
	return nil
}

package parked

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Detail is a record with its row, which is nil when the outbox table does not
// have it any more.
type Detail struct {
	Record
	Row *Row `json:"outbox"`
}

// ErrUnknown says that there is no record of a row: it never failed, or it was
// published after all.
var ErrUnknown = errors.New("there is no failure record of it: it never failed or was published since; see relay parked list")

const showSQL = `SELECT ` + recordColumns + `
  FROM %[1]s f
 WHERE ` + namedSQL + `
 ORDER BY f.row_id
 LIMIT 1`

// rowSQL reads the payload only for $3, since it may be large.
const rowSQL = `SELECT o.aggregate_type, o.aggregate_id, o.event_type, o.created_at, o.published_at,
       pg_catalog.octet_length(o.payload::text)::int8, CASE WHEN $3::bool THEN o.payload::text END
  FROM %[2]s o
 WHERE o.id = $1::bigint AND o.event_id = $2::text::uuid`

// Show returns the record of a row and what the outbox table says about it, the
// payload only when it is asked for. It returns ErrUnknown where there is none.
func (s *Store) Show(ctx context.Context, id ID, payload bool) (Detail, error) {
	rows, events := lists([]ID{id})
	record, err := one[Record](ctx, s.conn, s.sql(showSQL), rows, events)
	if errors.Is(err, pgx.ErrNoRows) {
		return Detail{}, fmt.Errorf("row %s: %w", id, ErrUnknown)
	}
	if err != nil {
		return Detail{}, fmt.Errorf("read the failure record of row %s: %w", id, s.explain(err))
	}
	detail := Detail{Record: record}
	row, err := one[Row](ctx, s.conn, s.sql(rowSQL), record.RowID, record.EventID, payload)
	if err == nil {
		detail.Row = &row
	} else if !errors.Is(err, pgx.ErrNoRows) {
		return Detail{}, fmt.Errorf("read row %s: %w", id, s.explain(err))
	}
	return detail, nil
}

func one[T any](ctx context.Context, conn *pgx.Conn, sql string, args ...any) (T, error) {
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		var none T
		return none, err
	}
	return pgx.CollectOneRow(rows, pgx.RowToStructByPos[T])
}

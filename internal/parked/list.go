package parked

import (
	"context"
	"fmt"
	"iter"

	"github.com/jackc/pgx/v5"
)

// listSQL follows the primary key or the index of what is open, so that the first
// record comes at once however many there are.
const listSQL = `SELECT ` + recordColumns + `
  FROM %[1]s f
 WHERE ` + filterSQL + `
 ORDER BY f.row_id
 LIMIT nullif($6::bigint, 0)`

// List returns the records that the filter chooses, by row id, one at a time: a
// hundred thousand of them need no more memory than one. An error ends it.
func (s *Store) List(ctx context.Context, filter Filter) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		if err := s.list(ctx, filter, yield); err != nil {
			yield(Record{}, fmt.Errorf("list failure records: %w", s.explain(err)))
		}
	}
}

func (s *Store) list(ctx context.Context, filter Filter, yield func(Record, error) bool) error {
	rows, err := s.conn.Query(ctx, s.sql(listSQL), filter.args(filter.Limit)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		record, err := pgx.RowToStructByPos[Record](rows)
		if err != nil {
			return err
		}
		if !yield(record, nil) {
			return nil
		}
	}
	return rows.Err()
}

const countSQL = `SELECT count(*) FROM %[1]s f WHERE ` + filterSQL

// Count tells how many records the filter chooses, its limit aside.
func (s *Store) Count(ctx context.Context, filter Filter) (n int64, err error) {
	if err := s.conn.QueryRow(ctx, s.sql(countSQL), filter.args()...).Scan(&n); err != nil {
		return 0, fmt.Errorf("count failure records: %w", s.explain(err))
	}
	return n, nil
}

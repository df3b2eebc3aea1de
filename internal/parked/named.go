package parked

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// target is a record that an operator named, with the state of its row.
type target struct {
	RowID       int64   `db:"row_id"`
	EventID     string  `db:"event_id"`
	State       string  `db:"state"`
	ChangedAt   Time    `db:"changed_at"`
	ChangedBy   *string `db:"changed_by"`
	RowExists   bool    `db:"row_exists"`
	PublishedAt Time    `db:"published_at"`
}

const targetsSQL = `SELECT f.row_id, f.event_id::text, f.state, f.changed_at, f.changed_by, o.id IS NOT NULL, o.published_at
  FROM %[1]s f
  LEFT JOIN %[2]s o ON o.id = f.row_id AND o.event_id = f.event_id
 WHERE ` + namedSQL + `
 ORDER BY f.row_id`

// lockRowsSQL locks the rows of named records. Those that somebody else works on
// are waited for: what becomes of them decides what may be done.
const lockRowsSQL = `SELECT o.id
  FROM %[2]s o
 WHERE o.id IN (SELECT f.row_id FROM %[1]s f WHERE ` + namedSQL + `)
   AND o.published_at IS NULL
 ORDER BY o.id
   FOR UPDATE`

const lockRecordsSQL = `SELECT f.row_id FROM %[1]s f WHERE ` + namedSQL + ` ORDER BY f.row_id FOR UPDATE`

// lockNamed locks the named records, behind their rows, and returns them as they
// are then. It fails unless each id has one, and mayChange agrees to each; the
// error names all that stand against it.
func (s *Store) lockNamed(ctx context.Context, tx pgx.Tx, ids []ID, mayChange func(target) error) ([]int64, error) {
	rows, events := lists(ids)
	for _, lock := range []string{lockRowsSQL, lockRecordsSQL} {
		if _, err := tx.Exec(ctx, s.sql(lock), rows, events); err != nil {
			return nil, err
		}
	}
	// A statement of its own: its snapshot shows what was waited for.
	found, err := tx.Query(ctx, s.sql(targetsSQL), rows, events)
	if err != nil {
		return nil, err
	}
	targets, err := pgx.CollectRows(found, pgx.RowToStructByPos[target])
	if err != nil {
		return nil, err
	}
	named := make(map[ID]target, 2*len(targets))
	for _, t := range targets {
		named[ID{row: t.RowID}], named[ID{event: t.EventID}] = t, t
	}
	var (
		chosen  []int64
		refused RefusedError
	)
	for _, id := range ids {
		err := ErrUnknown
		if t, ok := named[id]; ok {
			err = mayChange(t)
			chosen = append(chosen, t.RowID)
		}
		if err != nil {
			refused.Errs = append(refused.Errs, fmt.Errorf("row %s: %w", id, err))
		}
	}
	if len(refused.Errs) > 0 {
		return nil, &refused
	}
	return chosen, nil
}

// RefusedError lists the rows that cannot be changed as asked, with the reason of
// each. Nothing was changed.
type RefusedError struct{ Errs []error }

// Error names every row, on a line each.
func (r *RefusedError) Error() string {
	return "nothing was changed\n  - " + strings.ReplaceAll(errors.Join(r.Errs...).Error(), "\n", "\n  - ")
}

// Unwrap returns the reasons.
func (r *RefusedError) Unwrap() []error { return r.Errs }

// changed tells who changed the record last, as far as it is known.
func (t target) changed() string {
	if t.ChangedBy == nil {
		return ""
	}
	return fmt.Sprintf(" by %s at %s", *t.ChangedBy, t.ChangedAt)
}

package parked

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// requeueSQL has the rows tried again at once, as if they had never failed.
const requeueSQL = `UPDATE %[1]s
   SET state = 'waiting', attempts = 0, next_attempt_at = pg_catalog.clock_timestamp(),
       changed_at = pg_catalog.clock_timestamp(), changed_by = session_user
 WHERE row_id = ANY ($1::bigint[])`

// Requeue has the rows of these ids tried again at once, and returns how many
// they are. It is all or nothing: a *[RefusedError] names each id that is unknown or
// not open any more.
func (s *Store) Requeue(ctx context.Context, ids []ID) (n int64, err error) {
	err = s.change(ctx, func(tx pgx.Tx) error {
		chosen, err := s.lockNamed(ctx, tx, ids, target.mayRequeue)
		if err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, s.sql(requeueSQL), chosen)
		n = tag.RowsAffected()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("requeue: %w", err)
	}
	return n, nil
}

func (t target) mayRequeue() error {
	switch {
	case t.State == Discarded:
		return fmt.Errorf("it was discarded%s and counts as published: to publish it all the same, write a new event", t.changed())
	case t.State == DeadLettered:
		return errors.New("it stands in the dead-letter topic and counts as published: relay replay publishes it again on its own topic")
	case !t.RowExists:
		return errors.New("the outbox table does not have its row any more, there is nothing to publish: discard the record")
	case t.PublishedAt.Valid:
		return fmt.Errorf("its row was published at %s: relay replay publishes it again, and to discard it closes the record", t.PublishedAt)
	}
	return nil
}

// nextSQL locks the next open records that the filter chooses, those of rows that
// can be published. Row ids go up, so that locks are always asked for in the same
// order. A scalar subquery is a look into an index for each record, where an EXISTS
// may become a join that reads the whole outbox table for each batch.
const nextSQL = `SELECT f.row_id
  FROM %[1]s f
 WHERE f.state IN ('waiting', 'parked')
   AND ` + filterSQL + `
   AND f.row_id > $6::bigint
   AND (SELECT o.published_at IS NULL FROM %[2]s o WHERE o.id = f.row_id AND o.event_id = f.event_id)
 ORDER BY f.row_id
 LIMIT $7::int
   FOR UPDATE OF f`

// leftSQL counts the records that nextSQL steps over.
const leftSQL = `SELECT count(*)
  FROM %[1]s f
 WHERE f.state IN ('waiting', 'parked')
   AND ` + filterSQL + `
   AND (SELECT o.published_at IS NULL FROM %[2]s o WHERE o.id = f.row_id AND o.event_id = f.event_id) IS NOT TRUE`

// requeueBatch bounds how long one statement takes.
const requeueBatch = 2000

// RequeueAll has the rows of all open records that the filter chooses tried again
// at once, in one transaction, and returns how many they are, and how many records
// were left as they are because their rows are published or gone. The filter's
// limit does not count.
func (s *Store) RequeueAll(ctx context.Context, filter Filter) (n, left int64, err error) {
	err = s.change(ctx, func(tx pgx.Tx) error {
		n = 0
		for last := int64(-1 << 63); ; {
			rows, err := tx.Query(ctx, s.sql(nextSQL), filter.args(last, requeueBatch)...)
			if err != nil {
				return err
			}
			chosen, err := pgx.CollectRows(rows, pgx.RowTo[int64])
			if err != nil {
				return err
			}
			if len(chosen) == 0 {
				return tx.QueryRow(ctx, s.sql(leftSQL), filter.args()...).Scan(&left)
			}
			last = chosen[len(chosen)-1]
			tag, err := tx.Exec(ctx, s.sql(requeueSQL), chosen)
			if err != nil {
				return err
			}
			n += tag.RowsAffected()
		}
	})
	if err != nil {
		return 0, 0, fmt.Errorf("requeue: %w", err)
	}
	return n, left, nil
}

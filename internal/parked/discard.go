package parked

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// closeRowsSQL takes the rows out of the partial index, which relays walk. A row
// that was published meanwhile keeps its time.
const closeRowsSQL = `UPDATE %[2]s o
   SET published_at = pg_catalog.clock_timestamp()
  FROM %[1]s f
 WHERE f.row_id = ANY ($1::bigint[])
   AND o.id = f.row_id AND o.event_id = f.event_id AND o.published_at IS NULL`

const discardSQL = `UPDATE %[1]s
   SET state = 'discarded', reason = $2::text,
       changed_at = pg_catalog.clock_timestamp(), changed_by = session_user
 WHERE row_id = ANY ($1::bigint[])`

// Discard gives the rows of these ids up: they are marked as published without
// being it, and their records keep the reason, the time and the database user.
// It returns how many they are. It is all or nothing: a *[RefusedError] names each id
// that is unknown or not open any more.
func (s *Store) Discard(ctx context.Context, ids []ID, reason string) (n int64, err error) {
	err = s.change(ctx, func(tx pgx.Tx) error {
		chosen, err := s.lockNamed(ctx, tx, ids, target.mayDiscard)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, s.sql(closeRowsSQL), chosen); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, s.sql(discardSQL), chosen, reason)
		n = tag.RowsAffected()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("discard: %w", err)
	}
	return n, nil
}

func (t target) mayDiscard() error {
	switch t.State {
	case Discarded:
		return fmt.Errorf("it was discarded%s already", t.changed())
	case DeadLettered:
		return errors.New("it stands in the dead-letter topic and counts as published already")
	}
	return nil
}

package relay

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// markSQL takes the time of the mark, not that of the transaction's begin.
// Rows that somebody else has marked meanwhile keep their time.
const markSQL = `UPDATE {table}
   SET published_at = pg_catalog.clock_timestamp()
 WHERE id = ANY ($1::bigint[])
   AND published_at IS NULL`

// markLateSQL marks outside of the claim's transaction, and so looks twice: after
// a failover or a TRUNCATE the ids may be those of other events.
const markLateSQL = `UPDATE {table} r
   SET published_at = pg_catalog.clock_timestamp()
  FROM ROWS FROM (pg_catalog.unnest($1::bigint[]), pg_catalog.unnest($2::text[])) AS a (id, event_id)
 WHERE r.id = a.id
   AND r.event_id = a.event_id::uuid
   AND r.published_at IS NULL`

// conclusion is what a claim's transaction leaves behind.
type conclusion struct {
	marked   []int64
	refusals []refusal
	forgiven []int64 // rows published after they had failed
}

func (c *conclusion) empty() bool { return len(c.marked)+len(c.refusals) == 0 }

// commit marks the rows in the claim's transaction, records what was refused,
// and ends it, in one round trip. On an error the rows may be marked or not.
func (s *statements) commit(ctx context.Context, conn batcher, c conclusion) error {
	batch := &pgx.Batch{}
	if len(c.marked) > 0 {
		batch.Queue(s.mark, c.marked)
	}
	s.queueRefusals(batch, c.refusals)
	if len(c.forgiven) > 0 {
		batch.Queue(s.forget, c.forgiven)
	}
	batch.Queue("COMMIT")
	if err := conn.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("mark %d published rows: %w", len(c.marked), err)
	}
	return nil
}

// markLate marks rows whose transaction has ended: their acknowledgement came
// after it, or their mark failed. Until then somebody else may have published and
// marked them as well.
func (s *statements) markLate(ctx context.Context, conn batcher, acked []event) error {
	eventIDs := make([]string, len(acked))
	for i := range acked {
		eventIDs[i] = acked[i].eventID
	}
	err := s.alone(ctx, conn, func(batch *pgx.Batch) {
		batch.Queue(s.late, ids(acked), eventIDs)
		if forgiven := recorded(acked); len(forgiven) > 0 {
			batch.Queue(s.forget, forgiven)
		}
	})
	if err != nil {
		return fmt.Errorf("mark %d rows acknowledged earlier: %w", len(acked), err)
	}
	return nil
}

// recorded lists the rows that have a failure record.
func recorded(events []event) (rows []int64) {
	for i := range events {
		if events[i].recorded {
			rows = append(rows, events[i].id)
		}
	}
	return rows
}

// rollback gives the claimed rows free.
func rollback(ctx context.Context, conn batcher) error {
	batch := &pgx.Batch{}
	batch.Queue("ROLLBACK")
	if err := conn.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("roll back a claim: %w", err)
	}
	return nil
}

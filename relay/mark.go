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

// conclusion is what a claim's transaction leaves behind.
type conclusion struct {
	marked   []int64
	refusals []refusal
	forgiven []int64 // rows published after they had failed
}

func (c *conclusion) empty() bool { return len(c.marked)+len(c.refusals) == 0 }

// commit marks the rows in the claim's transaction, records what was refused,
// and ends it, in one round trip. On an error the rows may be marked or not; if
// not, they are published again.
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

// markLate marks rows whose acknowledgement came after their transaction had
// ended. Until then somebody else may have published and marked
// them as well.
func (s *statements) markLate(ctx context.Context, conn batcher, ids []int64) error {
	if err := s.alone(ctx, conn, func(batch *pgx.Batch) { batch.Queue(s.mark, ids) }); err != nil {
		return fmt.Errorf("mark %d rows acknowledged late: %w", len(ids), err)
	}
	return nil
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

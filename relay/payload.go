package relay

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// fetchSQL reads payloads of rows that this transaction has locked.
const fetchSQL = `SELECT id, payload::text
  FROM {table}
 WHERE id = ANY ($1::bigint[])
 ORDER BY id`

// complete fetches the payloads that did not come with the claim, in id order,
// and leaves the rest of the rows for later once the batch has its bytes. Two
// hundred rows of 20 MB would otherwise all stand in memory at once. The first
// row is always taken.
func (s *statements) complete(ctx context.Context, conn batcher, c *claim, limit int) error {
	for i := range c.events {
		if i > 0 && c.bytes >= limit {
			c.events, c.heavy = c.events[:i], true
			return nil
		}
		if c.events[i].payload == nil {
			if err := s.fetchPayloads(ctx, conn, together(c.events[i:], limit)); err != nil {
				return err
			}
		}
		c.bytes += len(c.events[i].payload)
	}
	return nil
}

// together are the first few events whose payloads are fetched in one go. They
// are few because a payload may unpack to a hundred times its stored size.
func together(events []event, limit int) []event {
	stored := 0
	for i := range events {
		stored += events[i].stored
		if i > 0 && (stored > limit/16 || events[i].payload != nil) {
			return events[:i]
		}
	}
	return events
}

func (s *statements) fetchPayloads(ctx context.Context, conn batcher, events []event) error {
	batch := &pgx.Batch{}
	fetched := 0
	batch.Queue(s.fetch, ids(events)).Query(func(r pgx.Rows) error {
		for ; r.Next(); fetched++ {
			var id int64
			if fetched == len(events) {
				return fmt.Errorf("more rows than the %d asked for", len(events))
			}
			e := &events[fetched]
			if err := r.Scan(&id, &e.payload); err != nil {
				return err
			}
			if id != e.id {
				return fmt.Errorf("row %d in place of %d", id, e.id)
			}
		}
		return r.Err()
	})
	err := conn.SendBatch(ctx, batch).Close()
	if err == nil && fetched < len(events) {
		err = fmt.Errorf("%d of %d rows", fetched, len(events))
	}
	if err != nil {
		return fmt.Errorf("fetch payloads of claimed rows: %w", err)
	}
	return nil
}

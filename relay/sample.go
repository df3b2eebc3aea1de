package relay

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// sampleEvery bounds what observing the backlog costs.
	sampleEvery   = 10 * time.Second
	sampleTimeout = 2 * time.Second
	// longestLag keeps a created_at of ages ago from overflowing.
	longestLag = 100 * 365 * 24 * time.Hour
)

// sampleSQL never counts more than 10,000 rows, and reads them from the partial
// index alone. Beyond that it gives the span of ids from the first unpublished
// row to the last row, which is what a backlog amounts to.
const sampleSQL = `SELECT coalesce(extract(epoch FROM pg_catalog.clock_timestamp() - first.created_at), 0)::float8,
       CASE WHEN counted.n < 10000 THEN counted.n
            ELSE (SELECT max(id) FROM {table}) - first.id + 1 END
  FROM (SELECT count(*) AS n
          FROM (SELECT FROM {table} WHERE published_at IS NULL AND ` + aboveSQL + ` ORDER BY id LIMIT 10000) u) counted
  LEFT JOIN LATERAL (SELECT id, CASE WHEN isfinite(created_at) THEN created_at END AS created_at
          FROM {table} r WHERE published_at IS NULL AND ` + aboveSQL + notParkedSQL + ` ORDER BY id LIMIT 1) first ON true`

type backlogSample struct {
	oldest      time.Duration
	unpublished int64
	parked      int
}

type sampler struct {
	mu   sync.Mutex
	ok   bool
	took backlogSample
}

func (s *sampler) last() (backlogSample, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.took, s.ok
}

func (r *Relay) runSampler(ctx context.Context) {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for {
		s, err := r.takeSample(ctx)
		r.sample.mu.Lock()
		r.sample.took, r.sample.ok = s, err == nil
		r.sample.mu.Unlock()
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (r *Relay) takeSample(ctx context.Context) (backlogSample, error) {
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	var (
		s      backlogSample
		oldest float64
	)
	skip := r.waits.exclusions()
	above := r.low.bound(skip.version)
	if len(skip.keys)+len(skip.topics) > 0 {
		above = bound{} // what waits counts, wherever it stands
	}
	if err := r.pool.QueryRow(ctx, r.sql.parked).Scan(&s.parked); err != nil {
		return s, fmt.Errorf("count the parked rows: %w", err)
	}
	// At rest this is all.
	left, err := r.sql.glance(ctx, r.pool, exclusions{}, above, "")
	if err != nil || !left {
		return s, err
	}
	conn, err := r.pool.Acquire(ctx)
	if err != nil {
		return s, err
	}
	defer conn.Release()
	err = r.sql.alone(ctx, conn, func(batch *pgx.Batch) {
		batch.Queue(r.sql.sample, above.id, above.table).QueryRow(func(row pgx.Row) error {
			return row.Scan(&oldest, &s.unpublished)
		})
	})
	if err != nil {
		return backlogSample{}, fmt.Errorf("sample the backlog: %w", err)
	}
	s.oldest = time.Duration(min(max(0, oldest), longestLag.Seconds()) * float64(time.Second))
	return s, nil
}

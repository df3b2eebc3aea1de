package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-relay/outbox-relay/internal/pgerr"
)

// sweepShare bounds the time that goes into sweeps. Beside a transaction that is
// open for long each takes longer than the last, and so they come less often.
const sweepShare = 20

const slowLowWater = "low-water bound cannot be kept, claims become slower: " +
	"look for a transaction that is open for long (pg_stat_activity)"

// keepLowWater moves the bound when a claim asks for it, until ctx is cancelled.
func (r *Relay) keepLowWater(ctx context.Context) {
	attempt := r.newAttempt("move the low-water bound")
	for {
		select {
		case <-r.low.moves:
			attempt(ctx, r.moveLowWater)
		case <-ctx.Done():
			return
		}
	}
}

// sweepLowWater looks for rows at or below the bound when a tick asks for it,
// until ctx is cancelled.
func (r *Relay) sweepLowWater(ctx context.Context) {
	attempt := r.newAttempt("look for rows below the low-water bound")
	for {
		select {
		case <-r.low.sweeps:
			took := attempt(ctx, r.sweep)
			sleep(ctx, (sweepShare-1)*took)
		case <-ctx.Done():
			return
		}
	}
}

// newAttempt returns a function that does one of the two and tells what it took.
// A server that is away is the workers' business. That it refuses, or cannot do
// it in the time that a statement has, is said once until it works.
func (r *Relay) newAttempt(what string) func(context.Context, func(context.Context, *pgxpool.Conn) error) time.Duration {
	said := false
	return func(ctx context.Context, do func(context.Context, *pgxpool.Conn) error) time.Duration {
		limited, cancel := context.WithTimeout(ctx, r.cfg.PublishTimeout)
		defer cancel()
		var began time.Time
		err := r.pool.AcquireFunc(limited, func(conn *pgxpool.Conn) error {
			began = time.Now()
			return do(limited, conn)
		})
		if began.IsZero() {
			return 0 // no connection
		}
		took := time.Since(began)
		failed := err != nil && ctx.Err() == nil && (pgerr.Refused(err) || took > r.cfg.PublishTimeout/2)
		if failed && !said {
			r.log.WarnContext(ctx, slowLowWater, "operation", what, "took", took, "error", pgerr.OneLine(err))
		}
		said = failed
		return took
	}
}

func (r *Relay) moveLowWater(ctx context.Context, conn *pgxpool.Conn) error {
	skip := r.waits.exclusions()
	state, err := r.sql.tableState(ctx, conn, r.table.Sanitize(), skip, r.low.bound(skip.version))
	if err == nil {
		r.low.learn(time.Now(), state)
	}
	return err
}

func (r *Relay) sweep(ctx context.Context, conn *pgxpool.Conn) error {
	skip := r.waits.exclusions()
	found := r.low.bound(skip.version)
	if found.id == 0 {
		return nil // claims start at the first row
	}
	var row int64
	began := time.Now()
	err := r.sql.alone(ctx, conn, func(batch *pgx.Batch) {
		batch.Queue(r.sql.below, lookArgs(skip, found)...).QueryRow(func(r pgx.Row) error { return r.Scan(&row) })
	})
	r.low.walked(time.Since(began))
	if err != nil {
		return fmt.Errorf("look for rows below the low-water bound: %w", err)
	}
	if r.low.takeBack(row) {
		r.bell.Load().Wake()
	}
	return nil
}

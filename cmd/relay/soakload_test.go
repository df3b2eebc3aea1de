package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/load"
)

// writeMix begins to write what services write: hot keys and many keys, steady
// and in waves, small and large payloads, transactions that are rolled back or
// commit long after they drew their id.
func (f *traffic) writeMix(random *rand.Rand) {
	hot, many := f.writer("hot-", 5, 100), f.writer("many-", 2000, 150)
	large := f.writer("large-", 10, 3)
	large.PayloadSize = 100_000
	rolledBack := f.writer("rolled-back-", 20, 30)
	rolledBack.Insert = afterRollbacks(rolledBack.Insert)
	// Each connection is busy for as long as its transaction is open, so the
	// rate is what the pauses leave of it.
	late := f.writer("late-", 12, 0)
	late.Conns, late.Insert = 4, committedLate(late.Insert)
	for _, w := range []*load.Writer{hot, many, large, rolledBack, late} {
		f.write(w.Run)
	}
	f.write(func(ctx context.Context) error { return f.writeWaves(ctx, random) })
}

// writeWaves writes at one rate after the other, from a trickle to as fast as
// it goes, with pauses. Each wave has keys of its own.
func (f *traffic) writeWaves(ctx context.Context, random *rand.Rand) error {
	for n := 0; ; n++ {
		rate := []float64{20, 200, 500, 1000, 0}[random.IntN(5)]
		w := f.writer(fmt.Sprintf("wave-%d-", n), 1+random.IntN(200), rate)
		w.Count = 1 + int(max(rate, 500)*3*random.Float64())
		w.Patient = true // Postgres may be out when the wave begins
		if err := w.Run(ctx); err != nil {
			return err
		}
		pause := time.NewTimer(time.Duration(random.Int64N(int64(3 * time.Second))))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil
		}
	}
}

// afterRollbacks has other events rolled back before each, with their
// transaction and to a savepoint. They must never be published.
func afterRollbacks(insert load.InsertFunc) load.InsertFunc {
	return func(ctx context.Context, conn *pgx.Conn, event load.Event) error {
		never := event
		never.ID = uuid.Must(uuid.NewV7())
		tx, err := conn.Begin(ctx)
		if err != nil {
			return err
		}
		if err := insert(ctx, conn, never); err != nil {
			return err
		}
		if err := tx.Rollback(ctx); err != nil {
			return err
		}
		if tx, err = conn.Begin(ctx); err != nil {
			return err
		}
		savepoint, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		if err := insert(ctx, conn, never); err != nil {
			return err
		}
		if err := savepoint.Rollback(ctx); err != nil {
			return err
		}
		if err := insert(ctx, conn, event); err != nil {
			return err
		}
		return tx.Commit(ctx)
	}
}

// committedLate has each event committed up to 4 s after its row got its id.
func committedLate(insert load.InsertFunc) load.InsertFunc {
	return func(ctx context.Context, conn *pgx.Conn, event load.Event) error {
		tx, err := conn.Begin(ctx)
		if err != nil {
			return err
		}
		if err := insert(ctx, conn, event); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "SELECT pg_sleep($1)", 4*rand.Float64()); err != nil {
			return err
		}
		return tx.Commit(ctx)
	}
}

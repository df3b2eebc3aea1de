package bench

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/load"
	"github.com/outbox-relay/outbox-relay/relay"
)

// BenchmarkPinnedHorizon measures whether a relay stays as fast as it was while
// a transaction elsewhere holds a snapshot open, so that nothing that was marked
// since can be removed from the head of the index: with horizon=pinned for the
// whole run, with horizon=free never.
//
// After a first tenth that does not count, a tenth of BENCH_PINNED_ROWS is
// drained in five backlogs, eight tenths come at BENCH_PINNED_RATE a second, and
// the last tenth is drained in five backlogs again, all by one relay. drain-ratio is the speed of the last drain over that of the first,
// latency-ratio the p50 of the first tenth of the steady events over that of the
// last tenth. 1.0 is as good at the end as at the start, 0.5 half as good.
func BenchmarkPinnedHorizon(b *testing.B) {
	b.Run("horizon=free", func(b *testing.B) { benchmarkPinnedHorizon(b, false) })
	b.Run("horizon=pinned", func(b *testing.B) { benchmarkPinnedHorizon(b, true) })
}

func benchmarkPinnedHorizon(b *testing.B, pinned bool) {
	tenth := max(1, setting(b, "BENCH_PINNED_ROWS", 20_000)/50) * 5
	f := newOutbox(b).startFlow(b, load.NewLedger(), nil)
	if pinned {
		f.pinHorizon(b)
	}
	r, stop := f.relay(b, func(*relay.Config) {})
	awaitReady(b, r)
	f.drainAtOnce(b, tenth) // pays for what happens once

	first := f.drainAtOnce(b, tenth)
	writer := f.writer(b, setting(b, "BENCH_PINNED_RATE", 2000), 8*tenth)
	f.write(b, writer)
	f.arrive(b)
	last := f.drainAtOnce(b, tenth)

	found := f.finish(b, stop)
	check(b, found)
	steady := found.FromInsert[2*tenth : 10*tenth]
	early := load.Percentiles(steady[:len(steady)/10], 50, 99)
	late := load.Percentiles(steady[len(steady)-len(steady)/10:], 50, 99)
	report(b, first, "first-events/s")
	report(b, last, "last-events/s")
	report(b, last/first, "drain-ratio")
	report(b, milliseconds(early[0]), "first-p50-ms")
	report(b, milliseconds(late[0]), "last-p50-ms")
	report(b, milliseconds(early[1]), "first-p99-ms")
	report(b, milliseconds(late[1]), "last-p99-ms")
	report(b, float64(early[0])/float64(late[0]), "latency-ratio")
}

// pinHorizon does what a long report or a dump does.
func (o *outbox) pinHorizon(b *testing.B) {
	b.Helper()
	conn, err := pgx.Connect(b.Context(), o.cfg.DatabaseURL)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close(context.Background()) }) // nothing depends on a clean goodbye
	// Batched in one round trip, the SELECT takes the snapshot that stays.
	if _, err := conn.Exec(b.Context(), "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM "+o.table.Sanitize()+" LIMIT 1"); err != nil {
		b.Fatalf("hold a snapshot open: %v", err)
	}
}

// drainAtOnce returns the events/s at which a running relay drains rows of which
// a fifth becomes visible at once, and the next when that has arrived. It is the
// median of the five, so that a moment in which the machine did something else
// does not decide. The end is found at the consumer: a query for rows that are
// not marked yet would walk the same dead entries, and take the machine's time
// for it.
func (f *flow) drainAtOnce(b *testing.B, rows int) (perSecond float64) {
	b.Helper()
	var speeds []float64
	for range 5 {
		began := f.fill(b, f.ledger, backlog{rows: rows / 5, keys: 1000, keyPrefix: "drain-", topic: f.topic})
		f.arrive(b)
		speeds = append(speeds, float64(rows/5)/time.Since(began).Seconds())
	}
	slices.Sort(speeds)
	return speeds[2]
}

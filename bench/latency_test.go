package bench

import (
	"fmt"
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/load"
	"github.com/outbox-relay/outbox-relay/relay"
)

// BenchmarkLatency measures from just before the INSERT to the consumer, at a
// fixed rate of single-row commits. The loop is open: a slow relay does not slow
// the writers, which would hide its slowness.
func BenchmarkLatency(b *testing.B) {
	for _, rate := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprintf("rate=%d", rate), func(b *testing.B) { benchmarkLatency(b, rate) })
	}
}

func benchmarkLatency(b *testing.B, rate int) {
	f := newOutbox(b).startFlow(b, load.NewLedger(), nil)
	r, stop := f.relay(b, func(*relay.Config) {})
	awaitReady(b, r)

	// The first second pays for what happens once: prepared statements,
	// metadata, producer ids.
	warmup := rate
	writer := f.writer(b, rate, warmup+b.N*int(float64(rate)*passLength(b).Seconds()))
	writer.Warmup = warmup
	f.write(b, writer)
	found := f.finish(b, stop)
	check(b, found)

	samples := found.FromInsert[min(warmup, len(found.FromInsert)):]
	percentiles := load.Percentiles(samples, 50, 99, 99.9)
	for i, unit := range []string{"p50-ms", "p99-ms", "p999-ms"} {
		report(b, milliseconds(percentiles[i]), unit)
	}
	report(b, milliseconds(writer.Behind()), "behind-ms")
}

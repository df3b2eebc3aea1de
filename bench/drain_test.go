package bench

import (
	"testing"
	"time"

	"github.com/outbox-relay/outbox-relay/relay"
)

// BenchmarkDrain measures how fast a backlog is published: from the start of
// the relays to the mark of the last row.
func BenchmarkDrain(b *testing.B) {
	for _, bm := range []struct {
		name            string
		relays, workers int
	}{
		{"workers=1", 1, 1},
		{"workers=2", 1, 2},
		{"relays=2", 2, 2},
		{"relays=4", 4, 2},
	} {
		b.Run(bm.name, func(b *testing.B) {
			rows := setting(b, "BENCH_DRAIN_ROWS", 100_000)
			var took time.Duration
			for range b.N {
				took += drain(b, rows, bm.relays, bm.workers)
			}
			report(b, float64(b.N*rows)/took.Seconds(), "events/s")
		})
	}
}

// drain publishes a backlog in a database of its own and returns the time it
// took. Only that counts as the benchmark's time, too.
func drain(b *testing.B, rows, relays, workers int) time.Duration {
	b.StopTimer()
	defer b.StartTimer()
	o := newOutbox(b)
	o.fill(b, nil, backlog{rows: rows, keys: 1000, keyPrefix: "key-", topic: o.topic})

	b.StartTimer()
	began := time.Now()
	var stops []func()
	for range relays {
		_, stop := o.relay(b, func(cfg *relay.Config) { cfg.Workers = workers })
		stops = append(stops, stop)
	}
	o.awaitMarked(b)
	took := time.Since(began)
	b.StopTimer()

	for _, stop := range stops {
		stop()
	}
	o.verifyTopic(b)
	return took
}

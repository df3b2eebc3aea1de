package bench

import (
	"context"
	"fmt"
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/load"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
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
	o := newOutbox(b)
	ledger := load.NewLedger()
	consumer := o.consume(b, ledger)
	r, stop := o.relay(b, func(*relay.Config) {})
	awaitReady(b, r)
	testenv.Eventually(b, "the consumer fetches", func() bool {
		select {
		case <-consumer.Ready():
			return true
		default:
			return false
		}
	})

	// The first second pays for what happens once: prepared statements,
	// metadata, producer ids.
	warmup := rate
	writer := &load.Writer{
		URL:    o.cfg.DatabaseURL,
		Insert: load.InsertOutbox(o.table),
		Ledger: ledger,
		Topics: []string{o.topic},
		Keys:   128, KeyPrefix: "key-",
		Conns:       16,
		Rate:        float64(rate),
		Count:       warmup + b.N*int(float64(rate)*passLength(b).Seconds()),
		Warmup:      warmup,
		PayloadSize: payloadBytes(b),
	}
	if err := writer.Run(b.Context()); err != nil {
		b.Fatal(err)
	}
	settle, cancel := context.WithTimeout(b.Context(), settleTimeout)
	defer cancel()
	if err := ledger.Await(settle); err != nil {
		b.Error(err)
	}
	o.awaitMarked(b)
	stop()

	samples := verdict(b, consumer, ledger).FromInsert
	samples = samples[min(warmup, len(samples)):]
	percentiles := load.Percentiles(samples, 50, 99, 99.9)
	for i, unit := range []string{"p50-ms", "p99-ms", "p999-ms"} {
		report(b, milliseconds(percentiles[i]), unit)
	}
	report(b, milliseconds(writer.Behind()), "behind-ms")
}

package bench

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-relay/outbox-relay/internal/load"
	"github.com/outbox-relay/outbox-relay/relay"
)

// BenchmarkStart measures the start of a relay on a table of
// BENCH_START_PUBLISHED published rows and BENCH_START_WAITING rows of 1,000 keys
// behind them that wait, while 100 new ones a second are written. The sizes that
// say something are 10000000 and 1000000; they take minutes to write.
//
// first-ms runs from the start of the relay to the first event at the consumer,
// and events/s is the backlog over the time until all of it got there. new-p50-ms
// and new-max-ms are the latencies of new events that were written meanwhile:
// events come in the order of their ids, so that those have the backlog ahead of
// them.
func BenchmarkStart(b *testing.B) {
	for _, order := range []relay.Order{relay.OrderKey, relay.OrderNone} {
		b.Run("order="+string(order), func(b *testing.B) { benchmarkStart(b, order) })
	}
}

func benchmarkStart(b *testing.B, order relay.Order) {
	const newPerSecond = 100
	waiting := newWatch("waiting-", setting(b, "BENCH_START_WAITING", 20_000))
	var latencies []time.Duration // of the new events
	o, ledger := newOutbox(b), load.NewLedger()
	o.fill(b, nil, backlog{
		rows: setting(b, "BENCH_START_PUBLISHED", 100_000), keys: 1000, keyPrefix: "old-", topic: o.topic, published: true,
	})
	o.fill(b, ledger, backlog{rows: int(waiting.want), keys: 1000, keyPrefix: waiting.prefix, topic: o.topic})
	f := o.startFlow(b, ledger, func(record *kgo.Record, latency time.Duration) {
		if !waiting.note(record) {
			latencies = append(latencies, latency)
		}
	})

	writing, stopWriting := context.WithCancel(b.Context())
	defer stopWriting()
	var writers errgroup.Group
	writer := f.writer(b, newPerSecond, 0)
	writers.Go(func() error { return writer.Run(writing) })
	began := time.Now()
	_, stop := f.relay(b, func(cfg *relay.Config) { cfg.Order = order })
	waiting.await(b)
	stopWriting()
	if err := writers.Wait(); err != nil {
		b.Fatal(err)
	}
	found := f.finish(b, stop)
	if order == relay.OrderNone {
		found.OutOfOrder = 0 // what this setting allows
	}
	check(b, found)

	report(b, milliseconds(waiting.firstAt.Sub(began)), "first-ms")
	report(b, float64(waiting.want)/waiting.allAt.Sub(began).Seconds(), "events/s")
	percentiles := load.Percentiles(latencies, 50, 100)
	report(b, milliseconds(percentiles[0]), "new-p50-ms")
	report(b, milliseconds(percentiles[1]), "new-max-ms")
}

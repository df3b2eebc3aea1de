package bench

import (
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/load"
	"github.com/outbox-relay/outbox-relay/relay"
)

// BenchmarkHotKeys runs two relays with two workers each on four keys that get
// 2,000 events a second, and reports how many events came out of order for
// their key and how many were repeated. With the order rule both must be 0;
// without it, the figure shows what the rule is for.
func BenchmarkHotKeys(b *testing.B) {
	for _, order := range []relay.Order{relay.OrderKey, relay.OrderNone} {
		b.Run("order="+string(order), func(b *testing.B) { benchmarkHotKeys(b, order) })
	}
}

func benchmarkHotKeys(b *testing.B, order relay.Order) {
	const rate = 2000
	f := newOutbox(b).startFlow(b, load.NewLedger(), nil)
	var stops []func()
	for range 2 {
		r, stop := f.relay(b, func(cfg *relay.Config) { cfg.Order, cfg.Workers = order, 2 })
		awaitReady(b, r)
		stops = append(stops, stop)
	}
	writer := f.writer(b, rate, b.N*int(rate*passLength(b).Seconds()))
	writer.Keys, writer.KeyPrefix, writer.Conns = 4, "hot-", 4
	f.write(b, writer)
	found := f.finish(b, stops...)
	if order == relay.OrderKey {
		check(b, found)
	}
	report(b, float64(found.OutOfOrder), "out-of-order")
	report(b, float64(found.Duplicates), "repeats")
	report(b, float64(found.Committed), "events")
}

package bench

import (
	"context"
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
	o := newOutbox(b)
	ledger := load.NewLedger()
	consumer := o.consume(b, ledger)
	var stops []func()
	for range 2 {
		r, stop := o.relay(b, func(cfg *relay.Config) { cfg.Order, cfg.Workers = order, 2 })
		awaitReady(b, r)
		stops = append(stops, stop)
	}
	writer := &load.Writer{
		URL:    o.cfg.DatabaseURL,
		Insert: load.InsertOutbox(o.table),
		Ledger: ledger,
		Topics: []string{o.topic},
		Keys:   4, KeyPrefix: "hot-",
		Conns:       4,
		Rate:        rate,
		Count:       b.N * int(rate*passLength(b).Seconds()),
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
	for _, stop := range stops {
		stop()
	}
	found := catchUp(b, consumer, ledger)
	if order == relay.OrderKey {
		check(b, found)
	}
	report(b, float64(found.OutOfOrder), "out-of-order")
	report(b, float64(found.Duplicates), "repeats")
	report(b, float64(found.Committed), "events")
}

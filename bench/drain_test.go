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
	o.preload(b, rows)

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

// preload writes rows of 1,000 keys in turn. The event ids ascend as those of
// real writers do: random ones would spread the marks' index entries over the
// whole index and measure that.
func (o *outbox) preload(b *testing.B, rows int) {
	b.Helper()
	statement := "INSERT INTO " + o.table.Sanitize() + `
		(event_id, aggregate_type, aggregate_id, event_type, payload, topic, partition_key)
		SELECT (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint + n), 12, '0')
		        || '7' || substr(replace(gen_random_uuid()::text, '-', ''), 14))::uuid,
		       'load', key, 'load.sent',
		       jsonb_build_object('seq', n, 'fill', repeat('x', $2::int)), $3::text, key
		FROM (SELECT n, 'key-' || n % 1000 AS key FROM generate_series(1, $1::int) AS n) AS series
		ORDER BY n`
	const fields = len(`{"seq": 100000, "fill": ""}`)
	fill := max(0, payloadBytes(b)-fields)
	if _, err := o.pool.Exec(b.Context(), statement, rows, fill, o.topic); err != nil {
		b.Fatalf("write a backlog of %d rows: %v", rows, err)
	}
}

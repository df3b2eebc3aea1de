package relay

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// A claim ends where its bytes are used up, before more payloads are fetched,
// however they are stored.
func TestClaimIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	const limit = 256 << 10
	noise := func(bytes int) string { // does not compress
		return fmt.Sprintf(`(SELECT to_jsonb(string_agg(gen_random_uuid()::text, '')) FROM generate_series(1, %d))`, bytes/36+1)
	}
	fill := func(bytes int) string { return fmt.Sprintf(`to_jsonb(repeat('x', %d))`, bytes) }
	for name, tc := range map[string]struct {
		payloads []string // SQL, repeated to 40 rows
		window   int
		want     int // rows
	}{
		"small rows come whole":                        {[]string{fill(100)}, 40, 40},
		"large ones until the bytes are used up":       {[]string{noise(32 << 10)}, 40, 8},
		"the first always":                             {[]string{noise(300 << 10)}, 40, 1},
		"small between large":                          {[]string{noise(64 << 10), fill(10)}, 40, 7},
		"stored in little, but large":                  {[]string{fill(128 << 10)}, 40, 2},
		"stored in little and very large":              {[]string{fill(512 << 10)}, 40, 1},
		"a wide window fetches those of the batch":     {[]string{noise(1 << 10)}, 80, 40},
		"a wide window of large ones stops just there": {[]string{noise(32 << 10)}, 80, 8},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			for i := range 80 {
				f.exec(t, fmt.Sprintf(`INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, event_type, payload, topic, partition_key)
					SELECT gen_random_uuid(), 'a', '1', 'a.b', %s, 'a.b.c', 'key-%d'`, tc.payloads[i%len(tc.payloads)], i%7))
			}
			conn, err := f.pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			b := f.bounded()
			c, err := b.sql.take(t.Context(), conn, window{limit: tc.window, batch: 40, slices: 1, bytes: limit}, OrderKey)
			if err != nil {
				t.Fatal(err)
			}
			if len(c.events) != tc.want {
				t.Errorf("%d rows, want %d", len(c.events), tc.want)
			}
			if c.heavy != (tc.want < 40) {
				t.Errorf("says it left rows behind for their bytes: %v", c.heavy)
			}
			total := 0
			for i := range c.events {
				e := &c.events[i]
				if e.id != int64(i+1) {
					t.Errorf("row %d at place %d", e.id, i+1)
				}
				var want string
				if err := conn.QueryRow(t.Context(), `SELECT payload::text FROM outbox_event WHERE id = $1`, e.id).Scan(&want); err != nil {
					t.Fatal(err)
				}
				if string(e.payload) != want {
					t.Errorf("row %d has another payload than in the table, of %d bytes in place of %d", e.id, len(e.payload), len(want))
				}
				total += len(e.payload)
			}
			if c.bytes != total {
				t.Errorf("counts %d bytes, has %d", c.bytes, total)
			}
			if err := rollback(t.Context(), conn); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Payloads of every size arrive, in order and whole.
func TestPayloadsOfAllSizesArriveInOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	var events []testenv.Event
	for i := range 200 {
		size := []int{10, 3_000, 9_000, 120_000, 400_000}[i%5]
		events = append(events, testenv.Event{
			Topic: topic, Key: fmt.Sprintf("key-%d", i%3),
			Payload: fmt.Sprintf(`{"seq": %d, "fill": "%s"}`, i+1, strings.Repeat("x", size)),
		})
	}
	inserted := testenv.Insert(t, f.pool, events...)
	f.start(t, func(cfg *Config) { cfg.BatchBytes = 300_000 })
	for _, d := range consumer.WaitFor(t, len(events)) {
		// jsonb puts the shorter key first, and a space behind each colon.
		i := slices.IndexFunc(events, func(e testenv.Event) bool { return e.Payload == string(d.Value) })
		if i < 0 {
			t.Errorf("a payload of %d bytes is none of those written", len(d.Value))
		}
	}
	consumer.CheckOnce(t, inserted)
}

package main

import (
	"strings"
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/procfs"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// A backlog is drained in batches, and neither its size nor that of its rows
// shows in memory. MEMORY_ROWS and MEMORY_LARGE_ROWS set how many rows there are.
func TestMemoryStaysSmallWhileABacklogDrains(t *testing.T) {
	buildRelay(t)
	t.Parallel()
	for name, tc := range map[string]struct {
		rows    int
		payload string // SQL
		limit   int64  // bytes
	}{
		"rows of 1 kB": {rounds(t, "MEMORY_ROWS", 50_000), `jsonb_build_object('fill', repeat('x', 1000))`, 64 << 20},
		// A block that is longer than the window in which Postgres finds
		// repetitions: stored as it is.
		"rows of 20 MB": {rounds(t, "MEMORY_LARGE_ROWS", 10), `(SELECT to_jsonb(repeat(string_agg(md5(random()::text), ''), 2000))
			FROM generate_series(1, 313))`, 300 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := newEnvironment(t)
			topic := testenv.Topic(t, strings.Split(env["KAFKA_BROKERS"], ","), 4, "max.message.bytes=30000000")
			pool := testenv.Pool(t, env["DATABASE_URL"])
			_, err := pool.Exec(t.Context(), `INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, event_type, payload, topic, partition_key)
				SELECT gen_random_uuid(), 'order', '1', 'order.placed', `+tc.payload+`, $1, 'key-' || n % 1000
				  FROM generate_series(1, $2) n`, topic, tc.rows)
			if err != nil {
				t.Fatal(err)
			}
			p := startProcess(t, env)
			for left := tc.rows; left > 0; {
				before := left
				testenv.Eventually(t, "more rows are published", func() bool {
					err := pool.QueryRow(t.Context(), `SELECT count(*) FROM outbox_event WHERE published_at IS NULL`).Scan(&left)
					return err == nil && left < before
				})
			}
			_, peak, err := procfs.Memory(p.cmd.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			p.terminate(t)
			t.Logf("%d rows, peak of resident memory %d MB", tc.rows, peak>>20)
			if peak > tc.limit {
				t.Errorf("resident memory reached %d MB, want at most %d", peak>>20, tc.limit>>20)
			}
		})
	}
}

package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// A backlog is drained in batches, and its size must not show in memory.
func TestMemoryStaysSmallWhileABacklogDrains(t *testing.T) {
	buildRelay(t)
	t.Parallel()
	const (
		rows  = 50_000
		limit = 64 << 10 // kB
	)
	env := newEnvironment(t)
	topic := testenv.Topic(t, strings.Split(env["KAFKA_BROKERS"], ","), 4)
	pool := testenv.Pool(t, env["DATABASE_URL"])
	_, err := pool.Exec(t.Context(), `INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, event_type, payload, topic, partition_key)
		SELECT gen_random_uuid(), 'order', '1', 'order.placed', jsonb_build_object('fill', repeat('x', 1000)), $1, 'key-' || n % 1000
		  FROM generate_series(1, $2) n`, topic, rows)
	if err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, env)
	testenv.Eventually(t, "the backlog is drained", func() bool {
		var left bool
		err := pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM outbox_event WHERE published_at IS NULL)`).Scan(&left)
		return err == nil && !left
	})
	peak := peakMemory(t, p.cmd.Process.Pid)
	p.terminate(t)
	t.Logf("%d rows of 1 kB, peak of resident memory %d kB", rows, peak)
	if peak > limit {
		t.Errorf("resident memory reached %d kB, want at most %d", peak, limit)
	}
}

// peakMemory returns the largest resident size of a process so far, in kB.
func peakMemory(t *testing.T, pid int) (kB int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if value, found := strings.CutPrefix(line, "VmHWM:"); found {
			if _, err := fmt.Sscanf(value, "%d kB", &kB); err != nil {
				t.Fatal(err)
			}
		}
	}
	return kB
}

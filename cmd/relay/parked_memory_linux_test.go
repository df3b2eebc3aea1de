package main

import (
	"bufio"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/procfs"
)

func TestMemoryStaysSmallWhileManyRowsAreListed(t *testing.T) {
	buildRelay(t)
	t.Parallel()
	env := newEnvironment(t)
	const rows = 100_000
	// The errors alone are 50 MB.
	env.exec(t, `INSERT INTO outbox_relay_failure (row_id, event_id, topic, partition_key, kind, code, error, attempts, state)
		SELECT i, gen_random_uuid(), 'shop.order', i::text, 'row', 'MESSAGE_TOO_LARGE', repeat('x', 500), 5, 'parked'
		FROM generate_series(1, 100000) i`)
	for _, args := range [][]string{{"parked", "list"}, {"parked", "list", "--json"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), filepath.Join(built.dir, "relay"), args...)
			cmd.Env = env.list()
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			// While it runs: the kernel's own account begins before its exec.
			lines, peak := 0, int64(0)
			for scanner := bufio.NewScanner(stdout); scanner.Scan(); lines++ {
				if lines%10_000 > 0 {
					continue
				}
				if _, most, err := procfs.Memory(cmd.Process.Pid); err == nil { // else it has ended
					peak = max(peak, most)
				}
			}
			if err := cmd.Wait(); err != nil {
				t.Fatal(err)
			}
			t.Logf("peak of resident memory %d MB", peak>>20)
			if lines <= rows || peak == 0 || peak > 40<<20 {
				t.Errorf("%d lines and a peak of resident memory of %d MB, want more than %d lines and at most 40 MB", lines, peak>>20, rows)
			}
		})
	}
}

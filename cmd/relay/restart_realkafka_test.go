//go:build realkafka

// This test needs Java and Maven, which plain tests must do without; make
// test-kafka runs it.

package main

import "testing"

func TestRestartOfRealKafkaUnderLoadLosesNothing(t *testing.T) {
	buildRelay(t)
	t.Parallel()
	broker := ownKafka(t)
	killed := false
	const restarts = 2
	p := restartKafka(t, broker.Addr(), "10s", restarts, func(noticed func()) {
		if !killed {
			killed = true
			if err := broker.Kill(); err != nil {
				t.Fatal(err)
			}
			noticed()
		}
		// The second time in the orderly way, which may be too quick to notice.
		if err := broker.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	if n := len(p.changes("kafka")) / 2; n < 1 || n > restarts {
		t.Errorf("the log tells of %d outages of Kafka, want 1 or %d", n, restarts)
	} else {
		p.wantOutages(t, "kafka", n)
	}
}

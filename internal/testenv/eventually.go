package testenv

import (
	"testing"
	"time"
)

const (
	// waitTimeout is generous: a test that waits for something must not fail
	// because the machine is busy, only because the thing never comes.
	waitTimeout  = 30 * time.Second
	pollInterval = 5 * time.Millisecond
)

// Eventually looks every 5 ms whether the condition holds, and ends the test
// with what when it does not within 30 s. Call it from the test's goroutine.
func Eventually(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	deadline := time.NewTimer(waitTimeout)
	defer deadline.Stop()
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for !cond() {
		select {
		case <-deadline.C:
			tb.Fatalf("not within %s: %s", waitTimeout, what)
		case <-poll.C:
		}
	}
}

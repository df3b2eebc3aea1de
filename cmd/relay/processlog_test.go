package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// listening waits until the process hears notifications for the first time.
func (p *process) listening(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, "the process listens", func() bool { return slices.Contains(p.changes("listener"), up) })
}

const (
	down = "down"
	up   = "up"
	deaf = "deaf"
)

// changes returns what the log so far tells of the database, kafka or the
// listener: down or up, or that the listener is deaf, for each line about it.
func (p *process) changes(part string) []string {
	var changes []string
	for line := range strings.Lines(p.stderr.String()) {
		var record struct{ Msg, Server string }
		if json.Unmarshal([]byte(line), &record) != nil {
			continue
		}
		of, change := record.Server, ""
		switch record.Msg {
		case "server unavailable, nothing is lost and it is tried until it is back":
			change = down
		case "server available again":
			change = up
		case "listener lost, polling until it is back":
			of, change = "listener", down
		case "listening", "listener hears again":
			of, change = "listener", up
		}
		if strings.HasPrefix(record.Msg, "listener connected but notifications do not arrive") {
			of, change = "listener", deaf
		}
		if change != "" && of == part {
			changes = append(changes, change)
		}
	}
	return changes
}

// recovered waits until the log has told n times that the part came up again.
func (p *process) recovered(t *testing.T, part string, n int) {
	t.Helper()
	testenv.Eventually(t, fmt.Sprintf("the %s has come up again %d times", part, n), func() bool {
		changes := p.outages(part)
		return len(changes) >= 2*n && changes[len(changes)-1] == up
	})
}

// wantOutages fails the test unless the log has told n times that the part went
// down and came up again, in one line each: a line for each try would bury them.
func (p *process) wantOutages(t *testing.T, part string, n int) {
	t.Helper()
	if changes := p.outages(part); !slices.Equal(changes, slices.Repeat([]string{down, up}, n)) {
		t.Errorf("the log says of the %s: %q, want %d times down and up", part, changes, n)
	}
}

// outages are the changes but for the first, when it is the listener's start.
func (p *process) outages(part string) []string {
	changes := p.changes(part)
	if len(changes) > 0 && changes[0] == up {
		return changes[1:]
	}
	return changes
}

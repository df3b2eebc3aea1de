package main

import (
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/procfs"
)

// stat returns the state of the process and what it has used so far.
func (p *process) stat(t *testing.T) procfs.Stat {
	t.Helper()
	s, err := procfs.ReadStat(p.cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

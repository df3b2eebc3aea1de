package main

import (
	"time"

	"github.com/outbox-relay/outbox-relay/internal/procfs"
)

// usage is CPU time, of the contender and of all of Postgres.
type usage struct{ Peer, Postgres time.Duration }

func (u usage) minus(o usage) usage { return usage{u.Peer - o.Peer, u.Postgres - o.Postgres} }

// meter reads what is used. Both processes may be missing.
type meter struct {
	peer     *process
	postgres int
}

func (m meter) read() (u usage, err error) {
	if m.peer != nil {
		s, err := procfs.ReadStat(m.peer.pid)
		if err != nil {
			return usage{}, err
		}
		u.Peer = s.Own + s.Ended
	}
	if m.postgres != 0 {
		u.Postgres, err = procfs.FamilyTime(m.postgres)
	}
	return u, err
}

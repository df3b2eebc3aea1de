package main

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// begin makes something go wrong, adds to the repeats what it may cost, and
// returns what ends it. It returns nil where the last fault of the kind is too
// fresh.
func (s *soak) begin(t *testing.T, f fault) (mend func()) {
	t.Helper()
	mortal := veteran + 1 + f.relay%(soakRelays-1)
	switch f.kind {
	case relayKilled:
		s.killRelay(t, mortal)
		return func() { s.startRelay(t, mortal) }
	case relayStopped:
		old := s.relays[mortal]
		old.signal(t, syscall.SIGTERM)
		return func() {
			s.endRelay(t, old)
			s.startRelay(t, mortal)
		}
	case relayReplaced:
		old := s.relays[mortal]
		s.startRelay(t, mortal)
		old.signal(t, syscall.SIGTERM)
		return func() { s.endRelay(t, old) }
	case relayFrozen, relayFrozenLong:
		return s.freeze(t, s.relays[f.relay])
	case listenerEnded:
		s.endSessions(t, s.relays[f.relay].name+"-listener", s.relays[f.relay])
	case claimsEnded:
		s.endSessions(t, s.relays[f.relay].name+"-claims", s.relays[f.relay])
		s.repeats += soakInFlight
	case sessionsEnded:
		s.endSessions(t, "relay-%", s.relays[:]...)
		s.repeats += soakAllInFlight
	case kafkaRestarted, kafkaKilled:
		// In an outage each worker tries one more batch, to find out whether it
		// is over.
		return s.breakServer(t, &s.kafka, f.kind == kafkaKilled, 2*soakAllInFlight)
	case postgresRestarted:
		return s.breakServer(t, &s.postgres, false, soakAllInFlight)
	case postgresCrashed:
		// The marks of 0.6 s may not have reached the disk.
		return s.breakServer(t, &s.postgres, true, soakAllInFlight+s.arrivedWithin(2*time.Second))
	}
	return func() {}
}

// soakAllInFlight counts one relay more: while one is replaced, both run.
const soakAllInFlight = (soakRelays + 1) * soakInFlight

func (s *soak) freeze(t *testing.T, r *soakRelay) (thaw func()) {
	t.Helper()
	r.signal(t, syscall.SIGSTOP)
	r.frozen = true
	r.faults++
	s.repeats += soakInFlight
	return func() {
		r.signal(t, syscall.SIGCONT)
		r.frozen = false
	}
}

// endSessions has the server end the sessions of the relays that are named like
// this.
func (s *soak) endSessions(t *testing.T, name string, relays ...*soakRelay) {
	t.Helper()
	s.postgres.up(t)
	testenv.Eventually(t, "the server ends the sessions", func() bool {
		_, err := s.traffic.pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name LIKE $1`, name)
		return err == nil // the pool may still have connections from before a restart
	})
	for _, r := range relays {
		r.faults++
	}
}

// breakServer stops a server, or kills it, and has it start again in the
// background: the relays meet other faults meanwhile.
func (s *soak) breakServer(t *testing.T, server *soakServer, killed bool, repeats int) (mend func()) {
	t.Helper()
	if !server.recovered(t) {
		return nil
	}
	server.down = time.Now()
	s.repeats += repeats
	for _, r := range s.relays {
		r.faults++
	}
	restart := func() {
		started := make(chan startedServer, 1)
		server.starting = started
		go func() {
			err := server.restart(t.Context())
			started <- startedServer{err, time.Now()}
		}()
	}
	if !killed {
		restart()
		return func() {}
	}
	if err := server.kill(); err != nil {
		t.Fatal(err)
	}
	return restart
}

// soakServer is Postgres or Kafka.
type soakServer struct {
	kill     func() error
	restart  func(context.Context) error
	starting chan startedServer // nil unless a restart is under way
	// down and since are when it was broken last, and worked again.
	down, since time.Time
}

type startedServer struct {
	err error
	at  time.Time
}

// recovered tells whether the server may be broken again. It has to work for
// twice as long as it was away: on a slow machine it would otherwise be gone
// before a relay has reached it, and be away for most of the time.
func (s *soakServer) recovered(t *testing.T) bool {
	t.Helper()
	const least = 5 * time.Second
	if s.starting != nil && len(s.starting) == 0 {
		return false
	}
	s.up(t)
	return time.Since(s.since) > max(least, 2*s.since.Sub(s.down))
}

// up waits for a restart that is under way.
func (s *soakServer) up(t *testing.T) {
	t.Helper()
	if s.starting == nil {
		return
	}
	started := <-s.starting
	if started.err != nil {
		t.Fatal(started.err)
	}
	s.starting, s.since = nil, started.at
}

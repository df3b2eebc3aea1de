package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
	"github.com/outbox-relay/outbox-relay/relay"
)

const (
	// The first relay lives through the whole soak, so that it would show what
	// grows. The others come and go.
	soakRelays  = 3
	veteran     = 0
	soakWorkers = 2
	soakBatch   = 100
	// soakInFlight is what one relay may have sent and not marked.
	soakInFlight = soakWorkers * 2 * soakBatch

	soakPublishTimeout = 5 * time.Second
	soakTimeLimit      = soakPublishTimeout + time.Second
)

// soak is relays, their servers and their traffic.
type soak struct {
	env      variables
	postgres soakServer
	kafka    soakServer
	traffic  *traffic
	relays   [soakRelays]*soakRelay

	start, seen time.Time // seen: when watch last looked
	warmUp      time.Duration
	warm        usage // of the veteran, at most, by the end of the warm-up
	lines       int   // printed
	latencies   int   // counted in printed lines
	arrived     []arrivedBy
	done        []faultKind
	repeats     int // at most, after the faults so far
	processes   int
	mostLines   float64
	messages    map[string]int // lines of all logs
}

// soakRelay is a process with the number of faults that it met.
type soakRelay struct {
	*process
	name   string
	faults int
	frozen bool // it answers no request then
}

func newSoak(t *testing.T) *soak {
	t.Helper()
	postgres, broker := testenv.Postgres(t), ownKafka(t)
	s := &soak{
		postgres: soakServer{
			kill:    func() error { return syscall.Kill(postgres.PID(), syscall.SIGQUIT) },
			restart: postgres.Restart,
		},
		kafka:    soakServer{kill: broker.Kill, restart: broker.Restart},
		messages: map[string]int{},
	}
	s.env = environmentAt(t, postgres.URL()).with("KAFKA_BROKERS", broker.Addr()).
		with("RELAY_WORKERS", strconv.Itoa(soakWorkers)).with("RELAY_BATCH_MAX", strconv.Itoa(soakBatch)).
		with("RELAY_PUBLISH_TIMEOUT", soakPublishTimeout.String()).
		with("RELAY_SHUTDOWN_TIMEOUT", "5s").with("RELAY_STARTUP_TIMEOUT", "5m")
	s.traffic = newTraffic(t, s.env, 4)
	for i := range s.relays {
		s.startRelay(t, i)
	}
	for _, r := range s.relays {
		r.ready(t)
		r.listening(t)
	}
	return s
}

// startRelay starts relay i. Its sessions have names that say whose they are.
func (s *soak) startRelay(t *testing.T, i int) {
	t.Helper()
	s.processes++
	name := fmt.Sprintf("relay-%d", s.processes)
	s.relays[i] = &soakRelay{name: name, process: startProcess(t, s.env.
		with("DATABASE_URL", s.env.applicationName(t, name+"-claims")).
		with("RELAY_LISTEN_URL", s.env.applicationName(t, name+"-listener")))}
}

// retire checks what a relay that ended has said: a line for a change of state,
// not for a retry.
func (s *soak) retire(t *testing.T, r *soakRelay) {
	t.Helper()
	const perFault, besides = 4, 10
	lines := 0
	for line := range strings.Lines(r.stderr.String()) {
		var record struct{ Level, Msg, Server string }
		_ = json.Unmarshal([]byte(line), &record)
		s.messages[strings.TrimSpace(record.Level+" "+record.Msg+" "+record.Server)]++
		lines++
	}
	s.mostLines = max(s.mostLines, float64(lines-besides)/float64(max(r.faults, 1)))
	if limit := besides + perFault*r.faults; lines > limit {
		t.Errorf("%s met %d faults and wrote %d lines, want at most %d:\n%s", r.name, r.faults, lines, limit, r.stderr)
	}
}

// killRelay leaves relay i dead.
func (s *soak) killRelay(t *testing.T, i int) {
	t.Helper()
	r := s.relays[i]
	r.kill(t)
	s.retire(t, r)
	s.repeats += soakInFlight
}

// endRelay waits for a relay that was asked to stop. While a server is out it
// may run out of time for it, and says so.
func (s *soak) endRelay(t *testing.T, r *soakRelay) {
	t.Helper()
	result := r.end(t)
	s.retire(t, r)
	if result.code == exitRuntime && strings.Contains(result.stderr, relay.ErrShutdownIncomplete.Error()) {
		s.repeats += soakInFlight
		return
	}
	result.wants(t, exitOK, "relay stopped")
}

// endAll stops the relays in the orderly way.
func (s *soak) endAll(t *testing.T) {
	t.Helper()
	for _, r := range s.relays {
		r.signal(t, syscall.SIGTERM)
		s.endRelay(t, r)
	}
}

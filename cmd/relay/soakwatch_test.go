package main

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// What a relay may have grown by since its warm-up.
var soakGrowth = usage{memory: 32 << 20, goroutines: 10, files: 10}

// usage is what a relay's process takes.
type usage struct{ memory, goroutines, files int }

// usage asks a relay that is not frozen. One that just starts gives no answer,
// and so nothing.
func (r *soakRelay) usage(t *testing.T) (u usage) {
	t.Helper()
	_, metrics := get(t, "http://"+r.addr+"/metrics")
	for line := range strings.Lines(metrics) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		number, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue
		}
		switch name {
		case "process_resident_memory_bytes":
			u.memory = int(number)
		case "go_goroutines":
			u.goroutines = int(number)
		case "process_open_fds":
			u.files = int(number)
		}
	}
	return u
}

func (u usage) max(v usage) usage {
	return usage{max(u.memory, v.memory), max(u.goroutines, v.goroutines), max(u.files, v.files)}
}

func (u usage) plus(v usage) usage {
	return usage{u.memory + v.memory, u.goroutines + v.goroutines, u.files + v.files}
}

func (u usage) within(limit usage) bool { return u.max(limit) == limit }

func (u usage) String() string {
	return fmt.Sprintf("%d MB, %d goroutines, %d files", u.memory>>20, u.goroutines, u.files)
}

// arrivedBy is how many events had arrived at a time.
type arrivedBy struct {
	at    time.Time
	count int
}

// watch looks at the relays a few times a second, and prints a line every ten
// seconds.
func (s *soak) watch(t *testing.T) {
	t.Helper()
	now := time.Now()
	if now.Sub(s.seen) < 250*time.Millisecond {
		return
	}
	s.seen = now
	select {
	case err := <-s.traffic.read:
		t.Fatalf("the consumer failed: %v", err)
	case <-s.traffic.writing.Done():
		t.Fatalf("the writers failed: %v", s.traffic.writers.Wait())
	default:
	}
	counts, _ := s.traffic.ledger.Counts(s.latencies)
	s.arrived = append(s.arrived, arrivedBy{now, counts.Consumed})
	elapsed := now.Sub(s.start)
	if r := s.relays[veteran]; !r.frozen && elapsed < s.warmUp {
		s.warm = s.warm.max(r.usage(t))
	}
	if elapsed > time.Duration(s.lines+1)*10*time.Second {
		s.lines++
		s.progress(t)
	}
}

// arrivedWithin returns how many events arrived within a time until now, or
// somewhat more.
func (s *soak) arrivedWithin(d time.Duration) int {
	counts, _ := s.traffic.ledger.Counts(s.latencies)
	before := 0
	for _, a := range s.arrived {
		if time.Since(a.at) > d {
			before = a.count
		}
	}
	return counts.Consumed - before
}

// used tells what each relay takes.
func (s *soak) used(t *testing.T) string {
	t.Helper()
	var texts []string
	for _, r := range s.relays {
		if r.frozen {
			texts = append(texts, r.name+" frozen")
			continue
		}
		texts = append(texts, r.name+" "+r.usage(t).String())
	}
	return strings.Join(texts, "; ")
}

// checkGrowth fails the test unless the relays, once they rest, are what the
// veteran was after its warm-up, or a little more. Goroutines and connections of
// what is over take a moment to end.
func (s *soak) checkGrowth(t *testing.T) {
	t.Helper()
	limit := s.warm.plus(soakGrowth)
	t.Logf("the veteran after its warm-up of %s: %s; allowed at the end: %s; now: %s", s.warmUp, s.warm, limit, s.used(t))
	for _, r := range s.relays {
		testenv.Eventually(t, r.name+" is within its limits", func() bool { return r.usage(t).within(limit) })
	}
}

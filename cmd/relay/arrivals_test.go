package main

import (
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// arrivals remembers when each event came out of Kafka for the first time, for
// tests of what delays events.
type arrivals struct {
	mu   sync.Mutex
	seen map[string]bool // by event id
	all  []arrival
}

type arrival struct {
	key            string
	sent, received time.Time
}

func newArrivals() *arrivals { return &arrivals{seen: map[string]bool{}} }

// record takes a record with the time since its INSERT.
func (a *arrivals) record(r *kgo.Record, latency time.Duration) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, header := range r.Headers {
		if header.Key == "x-event-id" && !a.seen[string(header.Value)] {
			a.seen[string(header.Value)] = true
			a.all = append(a.all, arrival{string(r.Key), now.Add(-latency), now})
		}
	}
}

// since returns the events that arrived after a moment, in order of arrival.
func (a *arrivals) since(from time.Time) []arrival {
	a.mu.Lock()
	defer a.mu.Unlock()
	first := len(a.all)
	for first > 0 && a.all[first-1].received.After(from) {
		first--
	}
	return a.all[first:len(a.all):len(a.all)]
}

func (a arrival) latency() time.Duration { return a.received.Sub(a.sent) }

// worstLatency is 0 when there are no events.
func worstLatency(events []arrival) (worst time.Duration) {
	for _, event := range events {
		worst = max(worst, event.latency())
	}
	return worst
}

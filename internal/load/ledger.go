package load

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Ledger holds what was written against what was consumed. All methods may be
// called concurrently.
type Ledger struct {
	mu      sync.Mutex
	entries map[uuid.UUID]*entry
	newest  map[stream]int64
	counts  Counts
	missing int

	fromInsert []time.Duration
	fromCommit []time.Duration
}

type entry struct {
	stream   stream
	seq      int64
	sent     time.Time
	commit   time.Time
	received time.Time
}

// stream is what has an order: the events of a key on a topic.
type stream struct{ topic, key string }

// Counts are running totals of events.
type Counts struct {
	// Committed events are those whose commit the writer saw.
	Committed int
	// Consumed events arrived at least once, Duplicates counts further
	// arrivals, and OutOfOrder first arrivals of events that an event written
	// later for the same key had overtaken.
	Consumed   int
	Duplicates int
	OutOfOrder int
	// Unknown counts records that nobody wrote.
	Unknown int
}

// Report is the verdict at the end of a run.
type Report struct {
	Counts
	// Lost events were committed and did not arrive.
	Lost int
	// FromInsert are latencies from just before the INSERT to the consumer,
	// and FromCommit from the commit as the writer saw it. An event that was
	// consumed before its writer saw the commit has a FromCommit of 0.
	FromInsert []time.Duration
	FromCommit []time.Duration
}

// NewLedger returns an empty ledger.
func NewLedger() *Ledger {
	return &Ledger{entries: map[uuid.UUID]*entry{}, newest: map[stream]int64{}}
}

// Sending enters an event that is about to be written. An event that is written
// again after an error keeps its first time.
func (l *Ledger) Sending(event Event, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, again := l.entries[event.ID]; again {
		return
	}
	l.entries[event.ID] = &entry{stream: stream{event.Topic, event.Key}, seq: event.Seq, sent: at}
}

// Committed says that the event's commit was acknowledged: from now on it may
// not be lost.
func (l *Ledger) Committed(id uuid.UUID, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[id]
	e.commit = at
	l.counts.Committed++
	if e.received.IsZero() {
		l.missing++
		return
	}
	l.sample(e)
}

// Received says that a record with this event id arrived. It returns the
// latency from the INSERT, for display.
func (l *Ledger) Received(id uuid.UUID, at time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[id]
	if e == nil {
		l.counts.Unknown++
		return 0
	}
	if !e.received.IsZero() {
		l.counts.Duplicates++
		return at.Sub(e.sent)
	}
	e.received = at
	l.counts.Consumed++
	// Repeats of earlier events are what at-least-once allows, so only the
	// first arrival of each event is held against the order.
	if e.seq < l.newest[e.stream] {
		l.counts.OutOfOrder++
	} else {
		l.newest[e.stream] = e.seq
	}
	// A record often arrives before its writer has read the reply to COMMIT.
	if !e.commit.IsZero() {
		l.missing--
		l.sample(e)
	}
	return at.Sub(e.sent)
}

// sample is called once for each event, when both of its ends are known.
func (l *Ledger) sample(e *entry) {
	l.fromInsert = append(l.fromInsert, e.received.Sub(e.sent))
	l.fromCommit = append(l.fromCommit, max(0, e.received.Sub(e.commit)))
}

// Counts returns the totals so far and the latencies from commit that came in
// since the first seen of them, for a running display.
func (l *Ledger) Counts(seen int) (Counts, []time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts, slices.Clip(l.fromCommit[seen:])
}

// Await returns nil once every committed event has arrived, and an error that
// says how many have not when ctx ends before.
func (l *Ledger) Await(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		l.mu.Lock()
		missing := l.missing
		l.mu.Unlock()
		if missing == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for the consumer: %d committed events have not arrived: %w", missing, context.Cause(ctx))
		}
	}
}

// Report returns the verdict as it stands.
func (l *Ledger) Report() Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Report{
		Counts:     l.counts,
		Lost:       l.missing,
		FromInsert: slices.Clip(l.fromInsert),
		FromCommit: slices.Clip(l.fromCommit),
	}
}

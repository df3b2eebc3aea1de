package main

import (
	"slices"
	"time"

	"github.com/outbox-relay/outbox-relay/internal/load"
)

// result is what was measured of one contender. When Alone, only Writers
// and what Postgres used are there.
type result struct {
	Name, Title, Settings string
	// Alone tells that there was no contender.
	Alone bool

	// Startup runs from the start of the process to the first event out.
	Startup time.Duration
	// IdleCPU is in cores, IdleMemory and PeakMemory in bytes.
	IdleCPU, IdlePostgres float64
	IdleMemory            int64
	PeakMemory            int64

	Rates   []rateResult
	Writers writersResult
	Drain   drainResult

	verdict
}

// at returns what was measured at a rate, or nothing but zeros.
func (r result) at(rate int) rateResult {
	i := slices.IndexFunc(r.Rates, func(r rateResult) bool { return r.Rate == rate })
	if i < 0 {
		return rateResult{}
	}
	return r.Rates[i]
}

// verdict sums up the faults of all measurements.
type verdict struct{ Events, Lost, Duplicates, OutOfOrder int }

func (v *verdict) add(r load.Report) {
	v.Events += r.Committed
	v.Lost += r.Lost
	v.Duplicates += r.Duplicates
	v.OutOfOrder += r.OutOfOrder
}

// latency is that to the consumer.
type latency struct{ P50, P99, P999 time.Duration }

// rateResult is the latency at a rate, and what was used meanwhile.
type rateResult struct {
	Rate int
	// Reached is the rate that the writers came to. Where it is lower, the
	// contender slowed their commits, and the latency is that at this rate.
	Reached float64
	// Insert is counted from just before the INSERT, Commit from when its
	// writer saw the commit.
	Insert, Commit latency
	// Behind is by how much the most delayed INSERT missed its time.
	Behind time.Duration
	Events int
	Used   usage
}

// missed tells whether the writers did not come to the rate.
func (r rateResult) missed() bool { return r.Reached < 0.95*float64(r.Rate) }

// writersResult is what connections that write without pause achieve, and
// what comes out meanwhile.
type writersResult struct {
	Commits, Published float64 // a second
	Events             int
	Used               usage
}

// drainResult is a backlog's way out.
type drainResult struct {
	Events int
	// Startup runs from the start to the first event, Took from there to the
	// last.
	Startup, Took time.Duration
	Used          usage
}

func (d drainResult) rate() float64 {
	if d.Took <= 0 {
		return 0
	}
	return float64(d.Events) / d.Took.Seconds()
}

// per100k is CPU time in seconds for each 100,000 events.
func per100k(used time.Duration, events int) float64 {
	if events == 0 {
		return 0
	}
	return used.Seconds() * 100_000 / float64(events)
}

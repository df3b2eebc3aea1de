package load

import (
	"context"
	"sync/atomic"
	"time"
)

// Pacer hands out the moments at which an open loop sends: at a fixed rate from
// its start, whatever became of earlier sends. A closed loop would send less
// just when the system is slow, and so hide the latency that it is to measure.
type Pacer struct {
	start    time.Time
	interval time.Duration
	burst    int64
	count    int64
	next     atomic.Int64
}

// NewPacer starts a pace of rate sends a second that ends after count sends.
// A rate of 0 or less does not wait between sends; a count of 0 or less never
// ends.
func NewPacer(rate float64, count int) *Pacer {
	p := &Pacer{start: time.Now(), burst: 1, count: int64(count)}
	if rate > 0 {
		p.interval = time.Duration(float64(time.Second) / rate)
	}
	return p
}

// NewBurstPacer is NewPacer with sends that are due burst at a time: all of a
// burst at once, and then none until the rate allows for the next burst.
func NewBurstPacer(rate float64, count, burst int) *Pacer {
	p := NewPacer(rate, count)
	p.burst = int64(max(burst, 1))
	return p
}

// Wait blocks until the next send is due and returns the due time. Concurrent
// callers get one send each. It returns false when the pace has ended or ctx is
// cancelled.
func (p *Pacer) Wait(ctx context.Context) (due time.Time, ok bool) {
	n := p.next.Add(1) - 1
	if ctx.Err() != nil || p.count > 0 && n >= p.count {
		return time.Time{}, false
	}
	if p.interval == 0 {
		return time.Now(), true
	}
	due = p.start.Add(time.Duration(n-n%p.burst) * p.interval)
	wait := time.Until(due)
	if wait <= 0 {
		return due, true
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return due, true
	case <-ctx.Done():
		return time.Time{}, false
	}
}

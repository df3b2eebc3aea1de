package demo

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-relay/outbox-relay/internal/load"
)

// eventInterval spaces the events that are shown, so that eyes can follow.
const eventInterval = 250 * time.Millisecond

// Display shows a run's progress: in a terminal one line that changes in place
// with some of the events above it, elsewhere a line a second.
type Display struct {
	// Out is where to.
	Out io.Writer
	// Width returns the columns of the terminal that Out is, and is nil for
	// anything else.
	Width func() int

	mu        sync.Mutex
	line      string
	nextEvent time.Time
}

// run writes a line a second until ctx ends: the events of that second, the
// totals so far, and that second's latencies from commit to consumer.
func (d *Display) run(ctx context.Context, ledger *load.Ledger) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	defer d.finish()
	start := time.Now()
	last, seen := start, 0
	var before load.Counts
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			counts, latencies := ledger.Counts(seen)
			seen += len(latencies)
			p := load.Percentiles(latencies, 50, 99)
			rate := float64(counts.Consumed-before.Consumed) / now.Sub(last).Seconds()
			d.progress(fmt.Sprintf("%4.0fs %5.0f/s  committed %d  consumed %d  p50 %.2f ms  p99 %.2f ms",
				now.Sub(start).Seconds(), rate, counts.Committed, counts.Consumed, milliseconds(p[0]), milliseconds(p[1])))
			before, last = counts, now
		}
	}
}

// event shows some of the records in a terminal.
func (d *Display) event(record *kgo.Record, latency time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if d.Width == nil || now.Before(d.nextEvent) {
		return
	}
	d.nextEvent = now.Add(eventInterval)
	shown := fmt.Sprintf("%s %7.2f ms  partition %d@%-6d  %s  %s",
		now.Format("15:04:05.000"), milliseconds(latency), record.Partition, record.Offset, record.Key, record.Value)
	fmt.Fprintf(d.Out, "%s%s\n%s", clearLine, cut(shown, d.Width()), d.line)
}

func (d *Display) progress(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.Width == nil {
		fmt.Fprintln(d.Out, line)
		return
	}
	d.line = cut(line, d.Width())
	fmt.Fprintf(d.Out, "%s%s", clearLine, d.line)
}

func (d *Display) finish() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.line != "" {
		fmt.Fprintln(d.Out)
	}
}

// clearLine puts the cursor at the start of an emptied line.
const clearLine = "\r\x1b[K"

// cut keeps a line from wrapping: a wrapped one could not be cleared again.
func cut(line string, width int) string {
	runes := []rune(line)
	if width <= 0 || len(runes) < width {
		return line
	}
	return string(runes[:width-1])
}

package bench

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// watch notes when the events of some keys arrive.
type watch struct {
	prefix string // of the keys
	want   int64  // how many events they have

	seen atomic.Int64
	done chan struct{} // closed when all have arrived
	// Read them only when done is closed.
	firstAt, allAt time.Time
}

func newWatch(prefix string, want int) *watch {
	return &watch{prefix: prefix, want: int64(want), done: make(chan struct{})}
}

// note is an arrival. It reports whether the event is one of these.
func (w *watch) note(record *kgo.Record) bool {
	if !strings.HasPrefix(string(record.Key), w.prefix) {
		return false
	}
	n := w.seen.Add(1)
	if n == 1 {
		w.firstAt = time.Now()
	}
	if n == w.want {
		w.allAt = time.Now()
		close(w.done)
	}
	return true
}

// await returns when all have arrived. It ends the benchmark when none does for
// a minute.
func (w *watch) await(b *testing.B) {
	b.Helper()
	patience := time.NewTicker(settleTimeout)
	defer patience.Stop()
	for seen := int64(-1); ; {
		select {
		case <-w.done:
			return
		case <-patience.C:
			now := w.seen.Load()
			if now == seen {
				b.Fatalf("the relay stands still: %d of %d events of the keys %s* have arrived", now, w.want, w.prefix)
			}
			seen = now
		}
	}
}

package relay

import (
	"context"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// staged are the records that were handed to a client and do not stand in the
// batch of their partition yet: it keeps them aside until it has learned of
// their topic. A flush under way when it does so would send the first of them
// alone, and if the broker refused that one before the second is in its place,
// the second would go through: later events of a key before the first.
//
// It is a hook of the client, which calls it for each record.
type staged struct {
	mu      sync.Mutex
	records map[*kgo.Record]struct{}
	none    chan struct{} // closed once there are none, while somebody waits
}

func newStaged() *staged { return &staged{records: map[*kgo.Record]struct{}{}} }

func (s *staged) add(r *kgo.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records[r] = struct{}{}
}

// remove is called for a record that has its place, or has failed without.
func (s *staged) remove(r *kgo.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.records, r)
	if len(s.records) == 0 && s.none != nil {
		close(s.none)
		s.none = nil
	}
}

// OnProduceRecordPartitioned implements [kgo.HookProduceRecordPartitioned].
func (s *staged) OnProduceRecordPartitioned(r *kgo.Record, _ int32) { s.remove(r) }

// wait returns once no record is staged.
func (s *staged) wait(ctx context.Context) error {
	s.mu.Lock()
	if len(s.records) == 0 {
		s.mu.Unlock()
		return nil
	}
	none := make(chan struct{})
	s.none = none
	s.mu.Unlock()
	select {
	case <-none:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

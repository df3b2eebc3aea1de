package relay

import (
	"context"
	"sync"
)

// unmarked are events that Kafka acknowledged and whose mark failed. They are
// marked before anything is claimed again: while the database takes no mark (its
// disk is full), they would otherwise be published once more at each try.
type unmarked struct {
	mu     sync.Mutex
	events []event // without their payloads
}

func (u *unmarked) add(events []event) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, e := range events {
		e.payload = nil
		u.events = append(u.events, e)
	}
}

// mark marks and returns them. Others wait meanwhile: what they would claim may
// be among them.
func (u *unmarked) mark(ctx context.Context, sql *statements, conn batcher) (marked []event, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.events) == 0 {
		return nil, nil
	}
	if err := sql.markLate(ctx, conn, u.events); err != nil {
		return nil, err
	}
	marked, u.events = u.events, nil
	return marked, nil
}

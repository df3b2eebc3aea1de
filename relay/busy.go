package relay

import "time"

const (
	shortBusy = 10 * time.Millisecond
	longBusy  = time.Second
)

// busyKeys are keys whose next row somebody else holds. They are left out of
// the next claims for a while: their rows come first by id, and would fill the
// window again and again while the rows of all other keys wait behind them.
type busyKeys map[string]*busyKey

type busyKey struct {
	until time.Time
	pause time.Duration
}

func (b busyKeys) learn(now time.Time, c claim) {
	if len(b) > 0 {
		for i := range c.events {
			delete(b, c.events[i].key)
		}
	}
	for _, key := range c.held {
		k := b[key]
		if k == nil {
			k = &busyKey{pause: shortBusy / 2}
			b[key] = k
		}
		k.pause = min(longBusy, 2*k.pause)
		k.until = now.Add(k.pause)
	}
}

// skip lists the keys to leave out now. A key that was free for long enough
// starts over with the shortest pause.
func (b busyKeys) skip(now time.Time) []string {
	var keys []string
	for key, k := range b {
		switch {
		case now.Before(k.until):
			keys = append(keys, key)
		case now.Sub(k.until) > longBusy:
			delete(b, key)
		}
	}
	return keys
}

package relay

import "time"

const (
	shortBusy = 10 * time.Millisecond
	longBusy  = time.Second
	// busyPerKey is how long it takes to get past a busy key. Where they are so
	// many that a claim sees nothing else, the first must still be left out when
	// the last has been met.
	busyPerKey = 100 * time.Microsecond
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
	least := shortBusy
	if len(c.events) == 0 {
		least = max(least, time.Duration(len(b)+len(c.held))*busyPerKey)
	}
	for _, key := range c.held {
		k := b[key]
		if k == nil {
			k = &busyKey{pause: shortBusy / 2}
			b[key] = k
		}
		k.pause = min(longBusy, max(least, 2*k.pause))
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

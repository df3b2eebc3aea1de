package relay

const (
	// maxWiden bounds how far a window grows beyond the batch.
	maxWiden = 16
	// crowded is how many different keys must be held before a window that
	// published little is widened. A few busy keys are left out by name.
	crowded = 8
)

// sizing chooses how many rows the next claim looks at.
type sizing struct {
	min, max, bytes int

	size     int
	widen    int
	rowBytes int // moving average of a payload
}

func newSizing(cfg *Config) sizing {
	return sizing{min: cfg.BatchSize, max: cfg.BatchMax, bytes: cfg.BatchBytes, size: cfg.BatchSize, widen: 1}
}

// limit is the next claim's window.
func (s *sizing) limit() int {
	size := s.size
	if s.rowBytes > 0 {
		size = min(size, max(1, s.bytes/s.rowBytes))
	}
	return size * s.widen
}

// learn takes a claim's result: the batch doubles while claims come back full
// and shrinks when they do not. The window widens beyond it when rows that
// others hold fill it: they come first by id, so that the rows behind them
// would not be seen for as long as they are held.
func (s *sizing) learn(c claim, limit int) {
	if n := len(c.events); n > 0 {
		average := c.bytes / n
		if s.rowBytes > 0 {
			// Growth counts at once, since it is what memory pays for.
			average = max(average, (3*s.rowBytes+average)/4)
		}
		s.rowBytes = average
	}
	full := c.walked >= limit
	switch {
	case full && len(c.events) < limit/4 && len(c.held) >= crowded:
		s.widen = min(maxWiden, 2*s.widen)
	case s.widen > 1 && !full:
		s.widen /= 2
	case full && s.widen == 1:
		s.size = min(s.max, 2*s.size)
	case c.walked < s.size/2:
		s.size = max(s.min, s.size/2)
	}
}

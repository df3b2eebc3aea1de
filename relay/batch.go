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

// batch is how many rows the next claim may publish.
func (s *sizing) batch() int {
	if s.rowBytes == 0 {
		return s.size
	}
	return min(s.size, max(1, s.bytes/s.rowBytes))
}

// learn takes a claim's result: the batch doubles while claims come back full
// and shrinks when they do not. The window widens beyond it when rows that
// others hold fill it: they come first by id, so that the rows behind them
// would not be seen for as long as they are held. Rows of this relay's other
// workers, and of others in the team, are no reason (contended): those are about
// to be published, and a wide window would hold as many from them.
func (s *sizing) learn(c claim, win window, contended bool) {
	n := len(c.events)
	if n > 0 {
		average := c.bytes / n
		if s.rowBytes > 0 {
			// Growth counts at once, since it is what memory pays for.
			average = max(average, (3*s.rowBytes+average)/4)
		}
		s.rowBytes = average
	}
	switch {
	case c.full(win) && n < win.batch/4 && len(c.held) >= crowded:
		if contended {
			break
		}
		if s.widen == maxWiden {
			s.size = min(s.max, 2*s.size)
		}
		s.widen = min(maxWiden, 2*s.widen)
	case s.widen > 1 && (n >= win.batch/2 || !c.full(win)):
		s.widen /= 2
	}
	switch {
	case n >= win.batch:
		s.size = min(s.max, 2*s.size)
	case c.walked < s.size/2:
		s.size = max(s.min, s.size/2)
	}
}

package keeper

import (
	"io"
	"sync"
)

// tailSize is how much of a child's output is kept for error messages.
const tailSize = 8 << 10

// tail passes output on and remembers its end.
type tail struct {
	next io.Writer

	mu   sync.Mutex
	last []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = append(t.last, p...)
	if extra := len(t.last) - tailSize; extra > 0 {
		t.last = append(t.last[:0], t.last[extra:]...)
	}
	return t.next.Write(p)
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.last)
}

package relay

import (
	"context"
	"log/slog"
	"sync"

	"github.com/outbox-relay/outbox-relay/internal/pgerr"
)

// condition is whether a server can be worked with. It logs each change once,
// however often the same is reported; that a server which was away is back and
// refuses is one.
type condition struct {
	name string
	log  *slog.Logger

	mu      sync.Mutex
	known   bool
	err     error
	refuses bool // said so
}

func (c *condition) failed(ctx context.Context, err error) {
	refuses := pgerr.Refused(err) || loginRefused(err)
	c.mu.Lock()
	news := !c.known || c.err == nil || refuses && !c.refuses
	c.known, c.err = true, err
	c.refuses = c.refuses || refuses
	c.mu.Unlock()
	switch {
	case news && refuses:
		c.log.ErrorContext(ctx, `server refuses, nothing is lost and it is tried until it works: "relay check" tells what to do`,
			"server", c.name, "error", err)
	case news:
		c.log.ErrorContext(ctx, "server unavailable, nothing is lost and it is tried until it is back",
			"server", c.name, "error", err)
	}
}

func (c *condition) works(ctx context.Context) {
	c.mu.Lock()
	news := c.known && c.err != nil
	c.known, c.err, c.refuses = true, nil, false
	c.mu.Unlock()
	if news {
		c.log.InfoContext(ctx, "server available again", "server", c.name)
	}
}

// state returns whether it is up and, if not, why.
func (c *condition) state() (up bool, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.known:
		return false, "not reached yet"
	case c.err != nil:
		return false, c.err.Error()
	}
	return true, ""
}

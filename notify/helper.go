package notify

import (
	"context"
	"fmt"
	"time"
)

const (
	// helperDelay lets the sentinel take what a notification announced. If all
	// relays looked at once, each would take a part of a handful of rows and
	// hold up the rest for the others.
	helperDelay = 25 * time.Millisecond
	// helperPoll is how often a helper looks while the bell is free: writers
	// are silent then, and a sentinel that froze would be found out only by
	// the tick.
	helperPoll = 100 * time.Millisecond
)

// waitAsHelper leaves the first look to the sentinel.
func (d *Doorbell) waitAsHelper(ctx context.Context) (Source, error) {
	limit := time.Hour
	if d.cfg.Glance != nil {
		// Also where the tick is rare: nobody rings once the sentinel has gone.
		limit = d.probeEvery
	}
	if d.waiter.bellFree && d.cfg.Mode != Off { // in which it always is
		limit = min(limit, helperPoll)
	}
	s, err := d.sleep(ctx, limit)
	if err != nil || s != Notify {
		return s, err
	}
	timer := time.NewTimer(helperDelay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return Notify, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// glanceAsHelper reports whether no row is left. With the same statement it
// finds out, as a writer does, whether the bell is free, and whether the place
// of the sentinel is.
func (d *Doorbell) glanceAsHelper(ctx context.Context) (nothing bool) {
	relid := int32(d.relid.Load())
	try := fmt.Sprintf(", pg_catalog.pg_try_advisory_xact_lock_shared(%d, %d), pg_catalog.pg_try_advisory_xact_lock_shared(%d, %d)",
		bellClass, relid, sentinelClass, relid)
	var noSentinel bool
	left, err := d.cfg.Glance(ctx, d.cfg.Pool, try, &d.waiter.bellFree, &noSentinel)
	if err == nil && noSentinel {
		d.probeSoon()
	}
	return err == nil && !left
}

package notify

import (
	"context"
	"fmt"
	"time"
)

const (
	// armEvery keeps a relay at a rate near the threshold from spending its
	// time on tries of the bell.
	armEvery = 3 * time.Millisecond
	// armSeldom is how far the tries back off while nothing comes and some
	// writer's transaction stays open: each costs two statements.
	armSeldom = 500 * time.Millisecond
	// armBelow is the share of Rate below which the bell is taken again. The
	// gap keeps a steady rate near the threshold from flipping: notified wakes
	// then took 1.8 ms instead of 0.8.
	armBelow = 0.6
	// idlePoll bounds how far polls back off while nothing comes and the bell
	// cannot be had, for as long as some writer's transaction stays open. Every
	// 20 ms they took 2 % of a core.
	idlePoll = 50 * time.Millisecond
	// heldPoll bounds how far polls of an armed relay back off while all that is
	// left is held by somebody else. What is new rings.
	heldPoll = 250 * time.Millisecond
	// deafPoll is the poll interval of a relay that hears nothing.
	deafPoll = 20 * time.Millisecond
	// restAfter is how long nothing must have come before a tick or a poll
	// looks instead of claiming.
	restAfter = 20 * time.Millisecond
	// adjustTimeout bounds how long a waiter that could poll waits for the bell.
	// It leaves time for doubt to begin.
	adjustTimeout = doubtAfter + 50*time.Millisecond
	// confirmAfter is how long after the last row an armed relay looks once
	// without having been called. Under a steady load that finds a deaf listener
	// by what it should have heard, before a probe does; a lone event costs one
	// look more.
	confirmAfter = 50 * time.Millisecond
	// drainsFor is for how long a full claim shows that this relay drains.
	drainsFor = time.Second
)

// Round is what the caller found since its last wait.
type Round struct {
	// Rows is how many rows it published.
	Rows int
	// Full says that the claim reached its limit: more rows are likely. With
	// none published, Wait pauses as if polling.
	Full bool
	// Clear says that the claim saw every unpublished row there was, whoever
	// held it, and published them all. It stands for the look before a sleep.
	Clear bool
}

// waiter is the state of the goroutine that calls Wait.
type waiter struct {
	meter    rateMeter
	nextTick time.Time
	lastRow  time.Time
	lastArm  time.Time // last try
	lastNone time.Time // when this relay last published, or slept with nothing left
	bellFree bool      // as a helper last saw it
	asleep   bool      // armed, and the look after that found nothing
	uncalled bool      // the last wait was a sleep that no notification ended
	confirm  bool      // look once without being called
	slept    bool      // the last wait was a sleep with the bell held
}

// Wait returns when there may be something to claim. It must be called by one
// goroutine only, after each claim. An error is that of ctx or of Look; the
// caller may call again.
func (d *Doorbell) Wait(ctx context.Context, r Round) (Source, error) {
	now := time.Now()
	d.waiter.meter.add(now, r.Rows)
	if r.Rows > 0 {
		d.waiter.lastRow, d.waiter.lastNone, d.waiter.confirm = now, now, true
		if d.waiter.uncalled {
			d.unheard.Store(true)
			d.doubt()
		}
		if r.Full {
			already := d.drains(now)
			d.draining.Store(now.Add(drainsFor).UnixNano())
			if !already {
				d.probeSoon() // and join the team
			}
		}
	}
	// The bell is taken nowhere else than in Wait: if it is held now, it was
	// during the claim.
	r.Clear = r.Clear && d.waiter.slept
	d.waiter.asleep, d.waiter.uncalled, d.waiter.slept = false, false, false
	for {
		source, err := d.wait(ctx, r)
		if err != nil || !d.forNothing(ctx, r, source) {
			return source, err
		}
		r = Round{}
	}
}

// forNothing reports whether there is nothing to wake the caller for. A claim
// costs four statements and locks, a glance costs one.
func (d *Doorbell) forNothing(ctx context.Context, r Round, source Source) bool {
	if r.Full || d.cfg.Glance == nil || source == Reconnect {
		return false
	}
	now := time.Now()
	state := d.State()
	switch {
	case state.Listening && !state.Sentinel:
		return d.glanceAsHelper(ctx)
	case source == Notify || now.Sub(d.waiter.lastRow) < restAfter:
		return false
	case source == Tick && now.UnixNano()-d.glanced.Load() < int64(d.cfg.Tick):
		return true // seen by the probe
	}
	left, err := d.cfg.Glance(ctx, d.cfg.Pool, "")
	return err == nil && !left
}

// wait waits once.
func (d *Doorbell) wait(ctx context.Context, r Round) (Source, error) {
	now := time.Now()
	w := &d.waiter
	if !now.Before(w.nextTick) {
		return d.tick(now), nil
	}
	state := d.State()
	if w.asleep && state.Armed {
		return d.sleepArmed(ctx) // a tick for nothing
	}
	w.asleep = false
	if r.Full && state.Armed && !d.wantArmed(now, true) {
		// Also while there is no time to sleep: writers would go on notifying
		// under just the load that the bell is there for.
		if _, err := d.adjust(ctx, true, false); err != nil {
			return "", err
		}
	}
	switch {
	case r.Full && r.Rows > 0:
		return d.sleep(ctx, 0)
	case r.Full:
		return d.sleep(ctx, d.backoff(now))
	case !state.Listening || d.doubtful.Load():
		return d.sleep(ctx, deafPoll)
	case !state.Sentinel:
		return d.waitAsHelper(ctx)
	}

	armed, err := d.adjust(ctx, state.Armed, r.Rows == 0)
	switch {
	case err != nil:
		return "", err
	case !armed && r.Rows > 0:
		// More have come meanwhile, at this rate. In another moment there will be
		// enough of them to be worth a claim: at 5,000/s those without a pause took
		// so much of the machine that events came later, not sooner.
		return d.sleep(ctx, d.cfg.Poll)
	case !armed:
		return d.sleep(ctx, d.backoff(now))
	case r.Clear && state.Armed:
		// Whatever came since the claim's snapshot has rung.
		w.asleep = true
		return d.sleepArmed(ctx)
	}
	// A wake that arrived before the look is answered by it.
	select {
	case s := <-d.wake:
		if s != Notify {
			return s, nil
		}
	default:
	}
	left, err := d.cfg.Look(ctx)
	if err != nil {
		return "", fmt.Errorf("look for unpublished rows: %w", err)
	}
	switch {
	case left && r.Rows > 0:
		return Poll, nil
	case left: // held by somebody else; whoever it is may fail
		return d.sleep(ctx, max(d.backoff(now), min(now.Sub(w.lastNone)/8, heldPoll)))
	case !d.State().Armed:
		// The connection was lost after the bell was taken, and the wake that
		// says so may be the one that the look has answered.
		return Reconnect, nil
	}
	w.asleep = true
	return d.sleepArmed(ctx)
}

func (d *Doorbell) sleepArmed(ctx context.Context) (Source, error) {
	w := &d.waiter
	limit := time.Hour
	if w.confirm {
		limit, w.confirm = confirmAfter, false
	}
	source, err := d.sleep(ctx, limit)
	w.slept = true
	w.lastNone = time.Now()
	w.uncalled = source == Poll || source == Tick
	return source, err
}

// adjust takes or releases the bell as mode and rate want it, and reports
// whether it is held. A connection that does not answer in time is the probe's
// business; until then the bell counts as not held and the caller polls.
func (d *Doorbell) adjust(ctx context.Context, armed, empty bool) (bool, error) {
	now := time.Now()
	w := &d.waiter
	switch want := d.wantArmed(now, armed); {
	case armed && !want:
		_ = d.onConnection(ctx, adjustTimeout, func(ctx context.Context, s *session) error { return s.disarm(ctx) })
		return false, ctx.Err()
	case !armed && want && empty && now.Sub(w.lastArm) >= min(max(now.Sub(w.lastRow)/8, armEvery), armSeldom):
		w.lastArm = now
		_ = d.onConnection(ctx, adjustTimeout, func(ctx context.Context, s *session) error { return s.arm(ctx) })
		return d.State().Armed, ctx.Err()
	}
	return armed, nil
}

func (d *Doorbell) wantArmed(now time.Time, armed bool) bool {
	switch d.cfg.Mode {
	case Always:
		return true
	case Off:
		return false
	}
	limit := d.cfg.Rate
	if !armed {
		limit *= armBelow
	}
	return d.waiter.meter.perSecond(now) < limit
}

// backoff is the poll interval: the configured one while rows come, growing to
// 50 ms while none do.
func (d *Doorbell) backoff(now time.Time) time.Duration {
	idle := now.Sub(d.waiter.lastRow) / 8
	return min(max(idle, d.cfg.Poll), max(idlePoll, d.cfg.Poll))
}

// sleep waits for a wake, the tick, or the given time. With no time to wait it
// leaves a pending wake pending.
func (d *Doorbell) sleep(ctx context.Context, limit time.Duration) (Source, error) {
	if limit <= 0 {
		return Poll, ctx.Err()
	}
	now := time.Now()
	untilTick := d.waiter.nextTick.Sub(now)
	timer := time.NewTimer(min(limit, untilTick))
	defer timer.Stop()
	select {
	case s := <-d.wake:
		return s, nil
	case now = <-timer.C:
		if limit < untilTick {
			return Poll, nil
		}
		return d.tick(now), nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (d *Doorbell) tick(now time.Time) Source {
	d.waiter.nextTick = now.Add(d.cfg.Tick)
	return Tick
}

package notify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
)

// helperProbe is how often a helper at rest probes. It holds nothing that
// others wait for.
const helperProbe = 5 * time.Second

// teamProbe is how often one of a team probes. Until it has seen who else drains
// it keeps to rows that others take as well.
const teamProbe = 100 * time.Millisecond

// probe sends a notification to this relay's own connection again and again.
// It shows that notifications arrive (a half-open TCP connection and a pooler
// in transaction mode look healthy and deliver nothing), keeps the server from
// taking the session for abandoned, and makes this relay the sentinel when the
// former one has gone.
func (d *Doorbell) probe(ctx context.Context) {
	ticker := time.NewTicker(d.probeEvery)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-ticker.C:
			if d.helps() && time.Since(last) < d.helperProbe {
				continue
			}
		case <-d.probeNow:
		case <-d.doubts:
		case <-ctx.Done():
			return
		}
		d.mu.Lock()
		connected := d.closer != nil
		d.mu.Unlock()
		if !connected {
			continue
		}
		last = time.Now()
		err := d.onConnection(ctx, probeTimeout, d.answer)
		if ctx.Err() != nil {
			return
		}
		d.heard(ctx, err)
		every := d.probeEvery
		if d.drains(time.Now()) {
			every = min(every, teamProbe)
		}
		ticker.Reset(every)
	}
}

// probeSoon has a probe made now.
func (d *Doorbell) probeSoon() {
	select {
	case d.probeNow <- struct{}{}:
	default:
	}
}

// helps reports whether this relay is a helper at rest that hears.
func (d *Doorbell) helps() bool {
	s := d.State()
	return s.Listening && !s.Sentinel && s.Team == 0 && !d.drains(time.Now()) && !d.doubtful.Load()
}

// drains reports whether claims came back full a moment ago.
func (d *Doorbell) drains(now time.Time) bool { return now.UnixNano() < d.draining.Load() }

// answer is what the listening connection does for a probe: it sees to this
// relay's roles, with one query at least, which resets the server's
// idle_session_timeout. At rest that query is the tick's look.
func (d *Doorbell) answer(ctx context.Context, s *session) error {
	if err := d.takeRoles(ctx, s); err != nil {
		return err
	}
	if d.unheard.Swap(false) {
		if err := s.checkTable(ctx, d.cfg.Table); err != nil {
			_ = s.conn.Close(ctx)
			return err
		}
	}
	switch {
	case !s.sentinel:
		return nil // the try was a query
	case !s.member && d.cfg.Glance != nil:
		return d.glanceForTick(ctx, s)
	}
	return s.ask(ctx)
}

// checkTable fails if the table was made anew: its trigger rings another bell.
func (s *session) checkTable(ctx context.Context, table pgtable.Name) error {
	var same bool
	err := s.conn.QueryRow(ctx, "SELECT $1::text::regclass::oid = $2", table.Sanitize(), s.relid).Scan(&same)
	if err == nil && !same {
		err = errors.New("it was made anew, its writers ring another bell")
	}
	if err != nil {
		return fmt.Errorf("look up table %s: %w", table, err)
	}
	return nil
}

// takeRoles makes this relay the sentinel if no other is, and one of the team
// while it drains.
func (d *Doorbell) takeRoles(ctx context.Context, s *session) error {
	if err := s.settle(ctx); err != nil {
		return err
	}
	if err := s.trySentinel(ctx); err != nil {
		return err
	}
	if err := s.joinTeam(ctx, d.drains(time.Now())); err != nil {
		return err
	}
	return s.limitIdle(ctx, d.idleLimit(s))
}

// glanceForTick looks for rows on the listening connection. If the look itself
// fails, or is not made here, the waiter's own tick has to do.
func (d *Doorbell) glanceForTick(ctx context.Context, s *session) error {
	left, err := d.cfg.Glance(ctx, s.conn, "")
	switch {
	case err != nil:
		return s.ask(ctx)
	case !left:
		d.glanced.Store(time.Now().UnixNano())
	default:
		d.glanced.Store(0)
		d.ring(Tick)
	}
	return nil
}

// ask is a query for nothing but its answer.
func (s *session) ask(ctx context.Context) error {
	if _, err := s.conn.Exec(ctx, "SELECT 1"); err != nil {
		return fmt.Errorf("probe the listening connection: %w", err)
	}
	return nil
}

// idleLimit is the idle_session_timeout. A relay that is frozen (SIGSTOP, a
// paused VM) must not keep the bell, the sentinel's lock or its place in the
// team: the server ends the session after three missed probes. Notifications do
// not reset this clock, the probes' queries do.
func (d *Doorbell) idleLimit(s *session) time.Duration {
	every := d.helperProbe
	if s.sentinel || s.team > 0 {
		every = d.probeEvery
	}
	return max(3*every, 1500*time.Millisecond)
}

// heard records the outcome of a probe. Only an answer ends deafness. A
// connection that did not answer is closed: a half-open one would otherwise
// block for as long as TCP allows.
func (d *Doorbell) heard(ctx context.Context, err error) {
	d.mu.Lock()
	was, closer, heardBefore, sentinel := d.deaf, d.closer, d.proven, d.state.Sentinel
	switch {
	case err == nil:
		d.deaf, d.proven = false, true
		d.attempts.Store(0)
	case errors.Is(err, errDeaf) && closer != nil: // else it is lost, and known to be
		d.deaf = true
	}
	deaf := d.deaf
	d.state.Listening = closer != nil && d.proven && !deaf
	d.mu.Unlock()

	if errors.Is(err, errDeaf) && closer != nil {
		closer()
	}
	switch {
	case was && !deaf:
		d.cfg.Logger.InfoContext(ctx, "listener hears again")
	case err == nil && !heardBefore:
		d.logListening(ctx, sentinel)
	}
	if deaf && !was {
		d.cfg.Logger.WarnContext(ctx, "listener connected but notifications do not arrive, polling until they do: "+
			"point RELAY_LISTEN_URL directly at Postgres, not at a pooler in transaction mode")
		d.ring(Reconnect)
	}
}

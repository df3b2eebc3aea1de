package notify

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-relay/outbox-relay/internal/pgerr"
	"github.com/outbox-relay/outbox-relay/internal/pgtable"
)

// Source says what ended a wait.
type Source string

const (
	// Notify says that a writer rang the bell.
	Notify Source = "notify"
	// Poll says that the poll interval passed, rows are known to be left, or
	// the listener is in doubt.
	Poll Source = "poll"
	// Tick says that the fallback ticker fired. The caller looks for every row,
	// whatever it left out before.
	Tick Source = "tick"
	// Reconnect says that the listener came up or went down, that this relay
	// became the sentinel, or that somebody else than the trigger notified. Rows
	// may have come unheard; the caller looks for every row.
	Reconnect Source = "reconnect"
)

// Config holds what a Doorbell needs. All fields but Glance are required.
type Config struct {
	// ListenURL must reach Postgres itself: a pooler in transaction mode lets
	// LISTEN seem to work and delivers nothing.
	ListenURL string
	// Pool carries the relay's control notifications; it may go through a
	// pooler, but to the same database.
	Pool  *pgxpool.Pool
	Table pgtable.Name
	Mode  Mode
	// Tick is the fallback interval.
	Tick time.Duration
	// Rate is the rows per second above which the bell is released.
	Rate float64
	// Poll is the interval of looks while the bell is released.
	Poll time.Duration
	// Look reports whether the table holds any unpublished row that is not left
	// alone by decision. Rows locked by somebody else count.
	Look func(context.Context) (bool, error)
	// Glance is Look for a relay at rest, in a single statement on q, which is
	// Pool or the listening connection: it stands between a tick, a poll or, for
	// a helper, a notification, and the wake. It also selects the expressions in
	// also, which begins with a comma unless it is empty, and scans them into
	// dest. After an error, or without Glance, each of them wakes; on the listening
	// connection it may refuse with an error, and the tick then asks on Pool.
	Glance func(ctx context.Context, q Querier, also string, dest ...any) (left bool, err error)
	Logger *slog.Logger
}

// Querier is a connection or a pool.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// State is what a Doorbell knows of itself.
type State struct {
	// Listening: the connection is up and, as far as is known, notifications
	// arrive on it.
	Listening bool
	// Sentinel: this relay is the one that may hold the bell.
	Sentinel bool
	// Armed: it holds the bell, so that writers notify.
	Armed bool
	// Team is how many relays drain a backlog now, with this one, and Rank
	// which of them it is, from 0. Team is 0 while this one does not.
	Team, Rank int
}

// Doorbell wakes one waiting goroutine. Run must be running for it to hear
// anything; without, Wait polls.
type Doorbell struct {
	cfg        Config
	connConfig *pgx.ConnConfig
	control    string

	probeEvery, helperProbe time.Duration

	requests chan request
	wake     chan Source
	doubts   chan struct{}

	// Owned by the goroutine in listen.
	session   *session
	connected bool // once

	attempts atomic.Int32  // to connect, since a probe last came back
	relid    atomic.Uint32 // of the table, once connected
	draining atomic.Int64  // until when this relay counts as draining, in ns since the epoch
	glanced  atomic.Int64  // when the listening connection last saw nothing left, likewise; 0 once it saw a row
	probeNow chan struct{}
	doubtful atomic.Bool // an answer is late
	unheard  atomic.Bool // rows came that nobody rang for

	mu      sync.Mutex
	state   State
	proven  bool // the connection has heard a notification, or is sure to
	deaf    bool
	downErr error
	closer  func() // ends the current connection from outside

	// Owned by the goroutine that calls Wait.
	waiter waiter

	afterSetUp func() // for tests: runs between connecting and LISTEN
}

// New builds a Doorbell. It fails only if ListenURL does not parse.
func New(cfg Config) (*Doorbell, error) {
	connConfig, err := pgx.ParseConfig(cfg.ListenURL)
	if err != nil {
		return nil, errors.New("the listener's URL does not parse")
	}
	if connConfig.RuntimeParams["application_name"] == "" {
		connConfig.RuntimeParams["application_name"] = "outbox-relay"
	}
	d := &Doorbell{
		cfg:         cfg,
		connConfig:  connConfig,
		control:     "outbox_relay_ctl_" + rand.Text(),
		probeEvery:  min(cfg.Tick, 500*time.Millisecond),
		helperProbe: helperProbe,
		requests:    make(chan request, 16),
		wake:        make(chan Source, 1),
		probeNow:    make(chan struct{}, 1),
		doubts:      make(chan struct{}),
	}
	d.waiter.nextTick = time.Now().Add(cfg.Tick)
	d.waiter.lastRow, d.waiter.lastNone = time.Now(), time.Now()
	return d, nil
}

// Run listens and probes until ctx is cancelled, and returns nil then. A lost
// connection is not an error: it is opened again, within a second, for as long
// as it takes.
func (d *Doorbell) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { d.probe(ctx) })
	err := d.listen(ctx)
	wg.Wait()
	if ctx.Err() == nil {
		return fmt.Errorf("listen for notifications: %w", err)
	}
	return nil
}

// State returns a snapshot.
func (d *Doorbell) State() State {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state
}

// ring wakes the waiter. A wake that is already pending stands for this one, but
// for Reconnect, which asks for more than the others.
func (d *Doorbell) ring(s Source) {
	for {
		select {
		case d.wake <- s:
			return
		default:
		}
		if s != Reconnect {
			return
		}
		select {
		case <-d.wake:
		default:
		}
	}
}

// Wake ends the current or the next Wait, for a caller who knows of rows.
func (d *Doorbell) Wake() { d.ring(Poll) }

// up is called on the listening connection once it listens.
func (d *Doorbell) up(ctx context.Context) {
	netConn := d.session.conn.PgConn().Conn()
	_ = netConn.SetDeadline(time.Time{}) // that of connecting
	d.doubtful.Store(false)
	d.mu.Lock()
	d.proven = d.session.direct
	hears := d.proven && !d.deaf
	d.state = State{Listening: hears, Sentinel: d.session.sentinel}
	d.downErr = nil
	d.closer = func() { _ = netConn.Close() }
	d.mu.Unlock()
	if hears {
		d.logListening(ctx, d.session.sentinel)
	}
	d.ring(Reconnect)
}

func (d *Doorbell) logListening(ctx context.Context, sentinel bool) {
	d.cfg.Logger.InfoContext(ctx, "listening", "table", d.cfg.Table.String(), "sentinel", sentinel)
}

// doubt is called when the listening connection is slow to answer, or rows came
// that it should have been told of. It may be deaf: it is probed, and until it
// answers the caller of Wait polls. Waiting for certainty would cost each event
// a second.
func (d *Doorbell) doubt() {
	if !d.doubtful.CompareAndSwap(false, true) {
		return
	}
	d.ring(Poll)
	select {
	case d.doubts <- struct{}{}:
	default: // a probe is under way
	}
}

// down is called when the listening connection is lost or cannot be opened. It
// logs the first failure only; the next line is that of up.
func (d *Doorbell) down(ctx context.Context, err error) {
	d.mu.Lock()
	known := d.downErr != nil || d.deaf
	d.state = State{}
	d.downErr = err
	d.closer = nil
	d.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	if !known {
		d.cfg.Logger.WarnContext(ctx, "listener lost, polling until it is back", "error", pgerr.OneLine(err))
	}
	d.ring(Reconnect)
}

// publishSession shows others what the listening connection holds.
func (d *Doorbell) publishSession() {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.state.Sentinel != d.session.sentinel:
		d.ring(Reconnect)
	case d.state.Armed && !d.session.armed:
		// Whoever asked for it may have lost patience, found nothing left, and
		// gone to sleep on a bell that is free now.
		d.ring(Poll)
	}
	d.state.Sentinel = d.session.sentinel
	d.state.Armed = d.session.armed
	d.state.Team, d.state.Rank = d.session.team, d.session.rank
	d.doubtful.Store(false)
}

// Release lets go of the bell, for a while in which the caller cannot claim
// anything and writers need not notify. Wait takes it again. In mode Always it
// does nothing.
func (d *Doorbell) Release(ctx context.Context) {
	if d.cfg.Mode != Always && d.State().Armed {
		_ = d.onConnection(ctx, adjustTimeout, func(ctx context.Context, s *session) error { return s.disarm(ctx) })
	}
}

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
	// Poll says that the poll interval passed, or rows are known to be left.
	Poll Source = "poll"
	// Tick says that the fallback ticker fired. The caller looks for every row, whatever it
	// left out before.
	Tick Source = "tick"
	// Reconnect says that the listener came up or went down, or that this relay
	// became the sentinel. Rows may have come unheard; the caller looks for every row.
	Reconnect Source = "reconnect"
)

// Config holds what a Doorbell needs. All fields are required.
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
	Look   func(context.Context) (bool, error)
	Logger *slog.Logger
}

// State is what a Doorbell knows of itself.
type State struct {
	// Listening: the connection is up and the last probe came back.
	Listening bool
	Sentinel  bool
	Armed     bool
}

// Doorbell wakes one waiting goroutine. Run must be running for it to hear
// anything; without, Wait polls.
type Doorbell struct {
	cfg        Config
	connConfig *pgx.ConnConfig
	control    string
	probeEvery time.Duration

	requests chan request
	wake     chan Source

	// Owned by the goroutine in listen.
	session   *session
	connected bool // once

	attempts atomic.Int32  // to connect, since a probe last came back
	relid    atomic.Uint32 // of the table, once connected

	mu      sync.Mutex
	state   State
	deaf    bool
	downErr error
	closer  func() // ends the current connection from outside

	// Owned by the goroutine that calls Wait.
	waiter waiter
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
		cfg:        cfg,
		connConfig: connConfig,
		control:    "outbox_relay_ctl_" + rand.Text(),
		probeEvery: min(cfg.Tick, 500*time.Millisecond),
		requests:   make(chan request, 16),
		wake:       make(chan Source, 1),
	}
	d.waiter.nextTick = time.Now().Add(cfg.Tick)
	d.waiter.lastRow = time.Now()
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

// ring wakes the waiter. A wake that is already pending stands for this one.
func (d *Doorbell) ring(s Source) {
	select {
	case d.wake <- s:
	default:
	}
}

// up is called on the listening connection once it listens.
func (d *Doorbell) up(ctx context.Context) {
	netConn := d.session.conn.PgConn().Conn()
	d.mu.Lock()
	deaf := d.deaf
	d.state = State{Listening: !deaf, Sentinel: d.session.sentinel}
	d.downErr = nil
	d.closer = func() { _ = netConn.Close() }
	d.mu.Unlock()
	if !deaf {
		d.cfg.Logger.InfoContext(ctx, "listening", "table", d.cfg.Table.String(), "sentinel", d.session.sentinel)
	}
	d.ring(Reconnect)
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
	if d.state.Sentinel != d.session.sentinel {
		d.ring(Reconnect)
	}
	d.state.Sentinel = d.session.sentinel
	d.state.Armed = d.session.armed
}

// probe sends a notification to this relay's own connection again and again.
// It shows that notifications arrive (a half-open TCP connection and a pooler
// in transaction mode look healthy and deliver nothing), keeps the server from
// taking the session for abandoned, and makes this relay the sentinel when the
// former one has gone.
func (d *Doorbell) probe(ctx context.Context) {
	ticker := time.NewTicker(d.probeEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		d.mu.Lock()
		connected := d.closer != nil
		d.mu.Unlock()
		if !connected {
			continue
		}
		err := d.onConnection(ctx, requestTimeout, func(ctx context.Context, s *session) error { return s.trySentinel(ctx) })
		if ctx.Err() != nil {
			return
		}
		d.heard(ctx, err)
	}
}

// heard records the outcome of a probe. Only an answer ends deafness. A
// connection that did not answer is closed: a half-open one would otherwise
// block for as long as TCP allows.
func (d *Doorbell) heard(ctx context.Context, err error) {
	d.mu.Lock()
	was, closer := d.deaf, d.closer
	switch {
	case err == nil:
		d.deaf = false
		d.attempts.Store(0)
	case errors.Is(err, errDeaf):
		d.deaf = true
	}
	deaf := d.deaf
	d.state.Listening = closer != nil && !deaf
	d.mu.Unlock()

	if errors.Is(err, errDeaf) && closer != nil {
		closer()
	}
	if was && !deaf {
		d.cfg.Logger.InfoContext(ctx, "listener hears again")
	}
	if deaf && !was {
		d.cfg.Logger.WarnContext(ctx, "listener connected but notifications do not arrive, polling until they do: "+
			"point RELAY_LISTEN_URL directly at Postgres, not at a pooler in transaction mode")
		d.ring(Reconnect)
	}
}

// Release lets go of the bell, for a while in which the caller cannot claim
// anything and writers need not notify. Wait takes it again. In mode Always it
// does nothing.
func (d *Doorbell) Release(ctx context.Context) {
	if d.cfg.Mode != Always && d.State().Armed {
		_ = d.onConnection(ctx, adjustTimeout, func(ctx context.Context, s *session) error { return s.disarm(ctx) })
	}
}

package notify

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgxlisten"
)

const (
	// connectTimeout bounds connecting and setting up the session.
	connectTimeout = 5 * time.Second
	// requestTimeout bounds what a handler does on the listening connection,
	// and how long an answer is waited for before the listener counts as deaf.
	requestTimeout = 1500 * time.Millisecond
	firstReconnect = 50 * time.Millisecond
	lastReconnect  = time.Second
)

// request is work for the listening connection. pgxlisten owns that connection
// and lends it to handlers only, so a request is queued here and then fetched
// by the control handler, which a notification of our own sets off.
type request struct {
	ctx  context.Context
	do   func(context.Context, *session) error
	done chan error
}

func (d *Doorbell) listen(ctx context.Context) error {
	l := &pgxlisten.Listener{
		// The wait before a reconnect is in connect, with jitter; pgxlisten's
		// own is fixed, and its zero value means a minute.
		ReconnectDelay: -1,
		LogError:       func(_ context.Context, err error) { d.down(ctx, err) },
	}
	l.Connect = func(ctx context.Context) (*pgx.Conn, error) { return d.connect(ctx, l) }
	l.Handle(d.control, controlHandler{d})
	return l.Listen(ctx)
}

// connect opens the listening connection. It resolves the table each time,
// because a restored or recreated table has another oid, and with it another
// channel and another bell.
func (d *Doorbell) connect(ctx context.Context, l *pgxlisten.Listener) (*pgx.Conn, error) {
	if err := d.reconnectPause(ctx); err != nil {
		return nil, err
	}
	d.dropRequests()
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()

	conn, err := pgx.ConnectConfig(ctx, d.connConfig.Copy())
	if err != nil {
		return nil, err
	}
	relid, err := d.setUp(ctx, conn)
	if err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	l.Handle(Channel(relid), pgxlisten.HandlerFunc(
		func(ctx context.Context, _ *pgconn.Notification, _ *pgx.Conn) error {
			d.ring(Notify)
			d.serve(ctx)
			return nil
		}))
	d.session = &session{conn: conn, relid: relid}
	d.relid.Store(relid)
	return conn, nil
}

func (d *Doorbell) reconnectPause(ctx context.Context) error {
	attempt := d.attempts.Add(1) - 1
	if !d.connected {
		d.connected = true
		return nil // the first time
	}
	ceiling := min(lastReconnect, firstReconnect<<min(attempt+1, 10))
	pause := firstReconnect + rand.N(ceiling-firstReconnect)
	select {
	case <-time.After(pause):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// setUp prepares the session. The settings are SET after connecting because
// poolers refuse them as start-up parameters.
func (d *Doorbell) setUp(ctx context.Context, conn *pgx.Conn) (relid uint32, err error) {
	_, err = conn.Exec(ctx, fmt.Sprintf(
		"SET statement_timeout = %d; SET lock_timeout = 0", requestTimeout.Milliseconds()),
		pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		return 0, fmt.Errorf("set up the listening session: %w", err)
	}
	err = conn.QueryRow(ctx, "SELECT $1::text::regclass::oid", d.cfg.Table.Sanitize()).Scan(&relid)
	if err != nil {
		return 0, fmt.Errorf("look up table %s: %w", d.cfg.Table, err)
	}
	// pgxlisten issues its LISTENs in no fixed order, and the control handler
	// reports the listener up after its own. The table's comes first, so that
	// nobody is told "listening" who is not yet.
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{Channel(relid)}.Sanitize()); err != nil {
		return 0, fmt.Errorf("listen on %s: %w", Channel(relid), err)
	}
	return relid, nil
}

// controlHandler carries out requests on the listening connection.
type controlHandler struct{ d *Doorbell }

// HandleBacklog runs once the connection listens: the relay takes its role and
// is woken, since rows may have been committed while nobody listened.
func (h controlHandler) HandleBacklog(ctx context.Context, _ string, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := h.d.takeRoles(ctx, h.d.session); err != nil {
		// Closed, so that the next read fails and the listener starts anew:
		// an error returned from here would only be logged.
		_ = conn.Close(ctx)
		return fmt.Errorf("take a role: %w", err)
	}
	h.d.dropRequests() // their notifications went out before this LISTEN
	h.d.up(ctx)
	return nil
}

func (h controlHandler) HandleNotification(ctx context.Context, _ *pgconn.Notification, _ *pgx.Conn) error {
	h.d.serve(ctx)
	return nil
}

// serve carries out the requests that are queued. Any notification sets it off.
func (d *Doorbell) serve(ctx context.Context) {
	for {
		select {
		case r := <-d.requests:
			if r.ctx.Err() != nil {
				continue // nobody waits for it any more
			}
			ctx, cancel := context.WithTimeout(ctx, requestTimeout)
			err := r.do(ctx, d.session)
			cancel()
			d.publishSession()
			r.done <- err
		default:
			return
		}
	}
}

var (
	// errDeaf says that a notification was sent and did not arrive.
	errDeaf = errors.New("the listening connection did not answer")
	// errReplaced says that the connection was replaced meanwhile.
	errReplaced = errors.New("the listening connection was replaced")
)

// dropRequests ends the requests that the last connection did not get to. They
// say nothing about the next one, and would fill the queue for good.
func (d *Doorbell) dropRequests() {
	for {
		select {
		case r := <-d.requests:
			r.done <- errReplaced
		default:
			return
		}
	}
}

// onConnection has the listening connection do something and waits for it, for
// as long as patience lasts. It returns errDeaf if the connection did not
// answer in time.
func (d *Doorbell) onConnection(ctx context.Context, patience time.Duration, do func(context.Context, *session) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r := request{ctx: ctx, do: do, done: make(chan error, 1)}
	select {
	case d.requests <- r:
	default:
		return errDeaf // nobody has fetched those before it
	}
	nudged := d.nudge(ctx)
	for {
		select {
		case err := <-r.done:
			return err
		case err := <-nudged:
			if err != nil {
				return fmt.Errorf("notify the listening connection: %w", err)
			}
			nudged = nil
		case <-ctx.Done():
			if nudged == nil {
				return errDeaf
			}
			return ctx.Err()
		}
	}
}

// nudge notifies this relay's own connection. It is not waited for: under many
// notifying writers its commit queues behind theirs, and by then one of their
// notifications has set off the request (50 ms of a burst went by otherwise).
func (d *Doorbell) nudge(ctx context.Context) <-chan error {
	sent := make(chan error, 1)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	go func() {
		defer cancel()
		// One statement, and no wait for the disk: this commit has nothing to
		// keep.
		const sql = `SELECT pg_catalog.set_config('synchronous_commit', 'off', true), pg_catalog.pg_notify($1, '')`
		_, err := d.cfg.Pool.Exec(ctx, sql, d.control)
		sent <- err
	}()
	return sent
}

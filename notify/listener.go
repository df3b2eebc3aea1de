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

	"github.com/outbox-relay/outbox-relay/internal/pgcred"
)

const (
	// connectTimeout bounds connecting and setting up the session.
	connectTimeout = 5 * time.Second
	// requestTimeout bounds what a handler does on the listening connection,
	// and the sending of a notification to it.
	requestTimeout = 1500 * time.Millisecond
	// answerTimeout is how long the answer to a notification that was sent may
	// take before the listener counts as deaf. It is shorter than
	// requestTimeout, so that a handler whose statement goes nowhere is found
	// out here, and not taken for a lost connection.
	answerTimeout = time.Second
	probeTimeout  = requestTimeout + answerTimeout
	// doubtAfter is how late an answer has to be for polls to begin. An answer
	// takes some milliseconds, also under load.
	doubtAfter     = 100 * time.Millisecond
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

	// While the pool does not work, no probe goes out, and the server would end
	// the session again and again; nor could a sentinel claim anything.
	if err := <-d.nudge(ctx); err != nil {
		return nil, fmt.Errorf("notify by the pool: %w", err)
	}
	config := d.connConfig.Copy()
	if err := pgcred.Renew(d.cfg.ListenURL)(ctx, config); err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	s, err := d.setUp(ctx, conn)
	if err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	l.Handle(Channel(s.relid), pgxlisten.HandlerFunc(
		func(ctx context.Context, n *pgconn.Notification, _ *pgx.Conn) error {
			if n.Payload == "" {
				d.ring(Notify)
			} else {
				d.ring(Reconnect) // not from the trigger: rows may be anywhere
			}
			d.serve(ctx)
			return nil
		}))
	d.session = s
	d.relid.Store(s.relid)
	// pgxlisten's LISTENs have no time limit of their own, and nothing probes
	// the connection before it is up.
	_ = conn.PgConn().Conn().SetDeadline(time.Now().Add(connectTimeout))
	if d.afterSetUp != nil {
		d.afterSetUp()
	}
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

// setUp finds out whom it talks to, and prepares the session if that is
// Postgres itself.
func (d *Doorbell) setUp(ctx context.Context, conn *pgx.Conn) (*session, error) {
	s := &session{conn: conn}
	var pid uint32
	err := conn.QueryRow(ctx, "SELECT pg_catalog.pg_backend_pid()::int8, $1::text::regclass::oid",
		d.cfg.Table.Sanitize()).Scan(&pid, &s.relid)
	if err != nil {
		return nil, fmt.Errorf("look up table %s: %w", d.cfg.Table, err)
	}
	s.direct = pid == conn.PgConn().PID()
	if s.direct {
		if err := s.settle(ctx); err != nil {
			return nil, err
		}
	}
	// pgxlisten issues its LISTENs in no fixed order, and the control handler
	// reports the listener up after its own. The table's comes first, so that
	// nobody is told "listening" who is not yet.
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{Channel(s.relid)}.Sanitize()); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", Channel(s.relid), err)
	}
	return s, nil
}

// controlHandler carries out requests on the listening connection.
type controlHandler struct{ d *Doorbell }

// HandleBacklog runs once the connection listens: the relay takes its role and
// is woken, since rows may have been committed while nobody listened.
func (h controlHandler) HandleBacklog(ctx context.Context, _ string, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if h.d.session.direct { // else once a probe has come back
		if err := h.d.takeRoles(ctx, h.d.session); err != nil {
			// Closed, so that the next read fails and the listener starts anew:
			// an error returned from here would only be logged.
			_ = conn.Close(ctx)
			return fmt.Errorf("take a role: %w", err)
		}
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
// as long as patience lasts. It returns errDeaf if the connection had
// answerTimeout for its answer and gave none.
func (d *Doorbell) onConnection(ctx context.Context, patience time.Duration, do func(context.Context, *session) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r := request{ctx: ctx, do: do, done: make(chan error, 1)}
	d.queue(r)
	nudged := d.nudge(ctx)
	late := time.After(doubtAfter)
	var overdue <-chan time.Time
	for {
		select {
		case err := <-r.done:
			return err
		case err := <-nudged:
			if err != nil {
				return fmt.Errorf("notify the listening connection: %w", err)
			}
			nudged, overdue = nil, time.After(answerTimeout)
		case <-late:
			d.doubt()
		case <-overdue:
			return errDeaf
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// queue makes room if it has to: a queue that is full holds requests that were
// given up, since there are never as many callers at a time.
func (d *Doorbell) queue(r request) {
	for {
		select {
		case d.requests <- r:
			return
		default:
		}
		select {
		case old := <-d.requests:
			old.done <- errReplaced
		default:
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

package relay

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/pgerr"
)

// hearingTimeout is how long a notification may take to be heard.
const hearingTimeout = time.Second

// adviseMode says what to do when a prepared statement was not where it had
// been prepared, or in the way where it had not. The name is that of the
// setting with the URL.
func adviseMode(err error, name string) error {
	if !pgerr.Unprepared(err) {
		return err
	}
	return fmt.Errorf("%w: a pooler in transaction mode stands before Postgres and does not keep prepared statements: add default_query_exec_mode=exec to %s", err, name)
}

// checkPooler looks whether a pooler stands before the database, and if so
// whether what the relay does on its connections works through it. A single
// connection would not tell: as long as it is alone, it gets the same session
// each time.
func (f *Findings) checkPooler(ctx context.Context, conn *pgx.Conn, url, listenURL string) {
	direct, err := isDirect(ctx, conn)
	if err != nil {
		f.fault("DATABASE_URL: look for a pooler: %w", adviseMode(err, "DATABASE_URL"))
		return
	}
	if direct {
		return
	}
	other, err := pgx.Connect(ctx, url)
	if err != nil {
		f.fault("DATABASE_URL: connect a second time: %w", err)
		return
	}
	defer closeConn(other)
	if _, err := isDirect(ctx, other); err != nil {
		f.fault("DATABASE_URL: %w", adviseMode(err, "DATABASE_URL"))
		return
	}
	if listenURL == "" {
		f.checkHearing(ctx, conn, other, "DATABASE_URL leads through a pooler")
	}
}

// isDirect tells whether Postgres itself is at the other end: a pooler gives
// out process ids of its own making.
func isDirect(ctx context.Context, conn *pgx.Conn) (bool, error) {
	var pid uint32
	err := conn.QueryRow(ctx, "SELECT pg_catalog.pg_backend_pid()::int8").Scan(&pid)
	return pid == conn.PgConn().PID(), err
}

// checkHearing listens on one connection and notifies by another, which changes
// nothing.
func (f *Findings) checkHearing(ctx context.Context, listener, notifier *pgx.Conn, what string) {
	ctx, cancel := context.WithTimeout(ctx, hearingTimeout)
	defer cancel()
	channel := "outbox_relay_check_" + rand.Text()
	_, err := listener.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize())
	if err == nil {
		_, err = notifier.Exec(ctx, "SELECT pg_catalog.pg_notify($1, '')", channel)
	}
	if err == nil {
		_, err = listener.WaitForNotification(ctx)
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		f.warn("%s and notifications do not arrive: rows are found by polling only, every 20 ms: point RELAY_LISTEN_URL directly at Postgres", what)
	case err != nil:
		f.fault("%s: listen and notify: %w", what, adviseMode(err, "it"))
	}
}

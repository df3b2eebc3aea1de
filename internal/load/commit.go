package load

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// insertTimeout bounds one transaction, so that a stop is never waited for
// longer than this.
const insertTimeout = 10 * time.Second

// commit inserts the event until its commit is certain, and returns the
// connection to use from now on. It returns nil as well when ctx ended first:
// what became of the event is then unknown, and nobody may call it lost.
func (w *Writer) commit(ctx context.Context, conn *pgx.Conn, event Event) (*pgx.Conn, error) {
	for again := false; ; again = true {
		// A stop must not cut an insert in two.
		attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), insertTimeout)
		err := w.Insert(attempt, conn, event)
		cancel()
		if err == nil || again && alreadyWritten(err) {
			w.Ledger.Committed(event.ID, time.Now())
			return conn, nil
		}
		if !connectionLost(err) {
			return conn, err
		}
		closeConn(conn)
		if conn, err = w.reconnect(ctx); conn == nil {
			return nil, err
		}
	}
}

// reconnect tries until it has a connection or ctx ends, and then returns nil.
func (w *Writer) reconnect(ctx context.Context) (*pgx.Conn, error) {
	retry := time.NewTicker(50 * time.Millisecond)
	defer retry.Stop()
	for {
		select {
		case <-retry.C:
		case <-ctx.Done():
			return nil, nil
		}
		conn, err := pgx.Connect(ctx, w.URL)
		if err == nil || ctx.Err() == nil && !connectionLost(err) {
			return conn, err
		}
	}
}

// alreadyWritten tells whether a repeat was refused because the first attempt
// had been committed after all.
func alreadyWritten(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.Code == "23505"
}

// connectionLost tells an error of the connection from one of the statement:
// everything that the server did not answer, and the classes 08 (connection)
// and 57P (the server goes down, is not up yet, or ended this backend).
func connectionLost(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return true
	}
	return len(pgErr.Code) == 5 && (pgErr.Code[:2] == "08" || pgErr.Code[:3] == "57P")
}

func closeConn(conn *pgx.Conn) {
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // nothing depends on a clean goodbye
}

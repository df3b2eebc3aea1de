package notify

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/embedpg"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
	"github.com/outbox-relay/outbox-relay/migrations"
)

func fixtureAt(t *testing.T, url string) *fixture {
	t.Helper()
	f := &fixture{url: url, log: testenv.Logs(t), helperProbe: 50 * time.Millisecond}
	if _, err := migrations.Up(t.Context(), f.url, outboxEvent, migrations.Options{Logger: f.log.Logger}); err != nil {
		t.Fatal(err)
	}
	f.pool = testenv.Pool(t, f.url)
	return f
}

// allowPrepared makes a server take prepared transactions, for which it has to
// be restarted.
func allowPrepared(t *testing.T, f *fixture, server *embedpg.Server) {
	t.Helper()
	if _, err := f.pool.Exec(t.Context(), `ALTER SYSTEM SET max_prepared_transactions = 10`); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.pool.Reset()
}

// prepare inserts in a transaction that is then prepared, and committed.
func (f *fixture) prepare(t *testing.T, name string) error {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), f.url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	testenv.Insert(t, tx, testenv.Event{Topic: "a.b.c", Key: "k"})
	if _, err := conn.Exec(t.Context(), `PREPARE TRANSACTION '`+name+`'`); err != nil {
		return err
	}
	_, err = conn.Exec(t.Context(), `COMMIT PREPARED '`+name+`'`)
	return err
}

const (
	lostLine = "listener lost, polling until it is back"
	deafLine = "listener connected but notifications do not arrive, polling until they do: " +
		"point RELAY_LISTEN_URL directly at Postgres, not at a pooler in transaction mode"
)

// loseListener terminates the listening connection and waits until its loss is
// noticed.
func (f *fixture) loseListener(t *testing.T) {
	t.Helper()
	before := len(f.log.Entries(lostLine))
	tag, err := f.pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'outbox-relay'`)
	if err != nil {
		t.Fatal(err)
	}
	if tag.RowsAffected() == 0 {
		t.Fatal("no listener to terminate")
	}
	testenv.Eventually(t, "the loss is noticed", func() bool { return len(f.log.Entries(lostLine)) > before })
}

// bystander listens on the table's channel and does nothing else.
type bystander struct{ conn *pgx.Conn }

func listen(t *testing.T, f *fixture) *bystander {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), f.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	var relid uint32
	if err := conn.QueryRow(t.Context(), `SELECT 'public.outbox_event'::regclass::oid`).Scan(&relid); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "LISTEN "+Channel(relid)); err != nil {
		t.Fatal(err)
	}
	return &bystander{conn}
}

// pending counts the notifications that have arrived.
func (b *bystander) pending(t *testing.T) (n int) {
	t.Helper()
	// A round trip brings everything that was sent before it.
	if _, err := b.conn.Exec(t.Context(), "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	for {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		_, err := b.conn.WaitForNotification(ctx)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
}

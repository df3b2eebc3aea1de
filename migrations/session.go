package migrations

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3/lock"

	"github.com/outbox-relay/outbox-relay/internal/pgerr"
	"github.com/outbox-relay/outbox-relay/internal/pgtable"
)

// lockID is the advisory lock under which a database is migrated, ASCII
// "obxmigr". It differs from goose's own, under which the service may run its
// migrations.
const lockID = 0x6f62786d696772

// lockWait is how many times, a second apart, a process asks for the lock while
// another one migrates the database.
const lockWait = 600

// session runs statements on one database for one outbox table.
type session struct {
	db    *sql.DB
	files files
	table pgtable.Name
	opts  Options
}

func newSession(databaseURL string, table pgtable.Name, opts Options) (*session, error) {
	folder, err := filesFor(table)
	if err != nil {
		return nil, err
	}
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("read database URL: %w", err)
	}
	config.RuntimeParams["application_name"] = cmp.Or(config.RuntimeParams["application_name"], "outbox-relay")
	opts.Logger = cmp.Or(opts.Logger, slog.New(slog.DiscardHandler))
	// Not below 1 ms: Postgres takes 0 for no timeout at all.
	opts.LockTimeout = max(cmp.Or(opts.LockTimeout, DefaultLockTimeout), time.Millisecond)
	opts.Attempts = cmp.Or(opts.Attempts, DefaultAttempts)
	db := stdlib.OpenDB(*config, stdlib.OptionAfterConnect(func(ctx context.Context, conn *pgx.Conn) error {
		return prepare(ctx, conn, table, opts.LockTimeout)
	}))
	return &session{db: db, files: folder, table: table, opts: opts}, nil
}

// prepareSQL sets what a session of this package needs, whatever the role or the
// database has as its default: a timeout of theirs must not cut off the build of
// an index, nor the session that holds the lock and waits. It goes through
// pg_settings because transaction_timeout exists from Postgres 17 on. The
// search_path is for goose, which cannot quote the schema of its version table.
const prepareSQL = `
SELECT pg_catalog.set_config(s.name, v.value, false)
FROM (VALUES ('search_path', $1::text),
             ('lock_timeout', $2::text),
             ('statement_timeout', '0'),
             ('transaction_timeout', '0'),
             ('idle_session_timeout', '0'),
             ('idle_in_transaction_session_timeout', '0'),
             ('default_transaction_isolation', 'read committed')) AS v (name, value)
JOIN pg_catalog.pg_settings s ON s.name = v.name`

func prepare(ctx context.Context, conn *pgx.Conn, table pgtable.Name, lockTimeout time.Duration) error {
	_, err := conn.Exec(ctx, prepareSQL, quote(table.Schema), milliseconds(lockTimeout))
	if err != nil {
		return fmt.Errorf("prepare the session: %w", err)
	}
	return nil
}

func setLockTimeout(ctx context.Context, conn *pgx.Conn, d time.Duration) error {
	if _, err := conn.Exec(ctx, "SET lock_timeout = "+milliseconds(d)); err != nil {
		return fmt.Errorf("set lock timeout: %w", err)
	}
	return nil
}

func milliseconds(d time.Duration) string {
	return strconv.FormatInt(d.Milliseconds(), 10)
}

// locked runs fn while this process alone migrates the database. conn is the
// connection that holds the lock. The lock is asked for again and again instead
// of waited for: a session that waits for a lock holds a snapshot, which CREATE
// INDEX CONCURRENTLY in the other process would wait for in turn.
func (s *session) locked(ctx context.Context, fn func(ctx context.Context, conn *pgx.Conn) error) error {
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockID(lockID), lock.WithLockTimeout(1, lockWait), lock.WithUnlockTimeout(1, 1))
	if err != nil {
		return err
	}
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return pgerr.Connecting(err)
	}
	defer conn.Close()

	waiting := time.AfterFunc(time.Second, func() {
		s.opts.Logger.InfoContext(ctx, "another process is migrating this database, waiting for it")
	})
	err = locker.SessionLock(ctx, conn)
	waiting.Stop()
	if err != nil {
		return fmt.Errorf("get the migration lock of the database (is another migration stuck?): %w", err)
	}
	// Best effort: at the latest the end of the session frees the lock.
	defer func() { _ = locker.SessionUnlock(context.WithoutCancel(ctx), conn) }()

	return conn.Raw(func(driverConn any) error {
		return fn(ctx, driverConn.(*stdlib.Conn).Conn())
	})
}

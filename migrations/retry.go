package migrations

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/sethvargo/go-retry"
)

const (
	lockNotAvailable      = "55P03"
	deadlockDetected      = "40P01"
	insufficientPrivilege = "42501"
)

// Between two tries the queue of the table has to drain, so the first pause is
// about as long as writers had to wait.
const (
	firstPause   = 250 * time.Millisecond
	longestPause = 5 * time.Second
)

// retryLocked runs try until it no longer fails for a lock, up to the number of
// attempts of the options. conn is used to see who is in the way.
func (s *session) retryLocked(ctx context.Context, conn *pgx.Conn, try func(context.Context) error) error {
	pauses := retry.WithMaxRetries(uint64(max(s.opts.Attempts, 1)-1),
		retry.WithCappedDuration(longestPause, retry.WithJitterPercent(20, retry.NewExponential(firstPause))))
	attempt := 0
	return retry.Do(ctx, pauses, func(ctx context.Context) error {
		err := explain(try(ctx))
		if code := sqlState(err); code != lockNotAvailable && code != deadlockDetected {
			return err
		}
		attempt++
		blocker := s.blocker(ctx, conn)
		if attempt < s.opts.Attempts {
			s.opts.Logger.InfoContext(ctx, "table is busy, trying again",
				"table", s.table.String(), "attempt", attempt, "blocked_by", blocker, "error", err)
		}
		return retry.RetryableError(fmt.Errorf("table %s is still busy after %d attempts, last seen in the way: %s; run it again when that has ended: %w",
			s.table, attempt, blocker, err))
	})
}

// blockerSQL finds the oldest transaction whose lock on the table keeps the
// trigger from being made. Its query stays out: it may hold a payload.
const blockerSQL = `
SELECT pg_catalog.format('pid %s (%s, %s, transaction open for %s s)', l.pid,
           coalesce(nullif(a.application_name, ''), a.backend_type, 'of another role'),
           coalesce(a.state, 'state unknown'),
           coalesce(extract(epoch FROM pg_catalog.clock_timestamp() - a.xact_start)::int8::text, 'unknown'))
FROM pg_catalog.pg_locks l
JOIN pg_catalog.pg_class c ON c.oid = l.relation AND c.relname = $2::text
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace AND n.nspname = $1::text
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.granted AND l.pid <> pg_catalog.pg_backend_pid()
  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
  AND l.mode NOT IN ('AccessShareLock', 'RowShareLock')
ORDER BY a.xact_start NULLS LAST
LIMIT 1`

func (s *session) blocker(ctx context.Context, conn *pgx.Conn) string {
	var who string
	err := conn.QueryRow(ctx, blockerSQL, s.table.Schema, s.table.Table).Scan(&who)
	if errors.Is(err, pgx.ErrNoRows) {
		return "nobody any more"
	}
	if err != nil {
		return "unknown"
	}
	return who
}

func sqlState(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}

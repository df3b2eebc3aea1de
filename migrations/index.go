package migrations

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// buildIndex builds the partial index on an existing table. CONCURRENTLY, it
// takes a lock that no writer waits for, at whatever time it gets it. Therefore
// no lock timeout applies: the build has to wait for every transaction older than
// itself, and a timeout there would leave an invalid index and start all over,
// on a busy table for ever. Cancelling ctx ends it; the next run removes what is
// left.
func (s *session) buildIndex(ctx context.Context, conn *pgx.Conn, report Report) error {
	name := indexName(s.table)
	if report.invalidIndex {
		s.opts.Logger.InfoContext(ctx, "removing an invalid index that a failed build has left behind", "index", name)
		// Under the lock timeout: another session may be building just this
		// index, and its finished work must not be dropped.
		if _, err := conn.Exec(ctx, "DROP INDEX CONCURRENTLY IF EXISTS "+s.table.Sibling(name)); err != nil {
			return fmt.Errorf("remove invalid index %s: %w", name, err)
		}
	}
	s.opts.Logger.InfoContext(ctx, "building the index of unpublished rows, which waits for older transactions but blocks no writer",
		"table", s.table.String(), "index", name)
	if err := setLockTimeout(ctx, conn, 0); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, buildIndex(s.table)); err != nil {
		// The next attempt on this connection removes what is left, under the
		// lock timeout again.
		return errors.Join(fmt.Errorf("build index %s: %w", name, err), setLockTimeout(ctx, conn, s.opts.LockTimeout))
	}
	return setLockTimeout(ctx, conn, s.opts.LockTimeout)
}

package parked

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
	"github.com/outbox-relay/outbox-relay/migrations"
	"github.com/outbox-relay/outbox-relay/notify"
)

// Store is the failure table beside one outbox table. It is used by one
// goroutine at a time, as its connection is.
type Store struct {
	conn     *pgx.Conn
	table    pgtable.Name
	failures string // the failure table, quoted for SQL
	channel  string // on which a running relay is woken
}

// Open returns the failure records of table. It fails where the tables are not
// as "relay migrate" makes them, and says what to do.
func Open(ctx context.Context, conn *pgx.Conn, table pgtable.Name) (*Store, error) {
	report, err := migrations.Inspect(ctx, conn, table)
	if err != nil {
		return nil, err
	}
	s := &Store{conn: conn, table: table, failures: table.Sibling(migrations.FailureTable), channel: notify.Channel(report.Relid)}
	switch {
	case !report.Exists:
		return nil, fmt.Errorf(`table %s does not exist: point DATABASE_URL and RELAY_TABLE at it, or create it with "relay migrate"`, table)
	case len(report.Differences) > 0:
		return nil, fmt.Errorf(`table %s is not the one the relay needs: %s`, table, strings.Join(report.Differences, "; "))
	case report.FailureTableFault != "":
		return nil, fmt.Errorf(`failure table %s: %s: "relay migrate" makes what is missing of it`, s.failures, report.FailureTableFault)
	}
	return s, nil
}

// sql names the tables of a statement: %[1]s is the failure table, %[2]s the
// outbox table.
func (s *Store) sql(statement string) string {
	return fmt.Sprintf(statement, s.failures, s.table.Sanitize())
}

const wakeSQL = `SELECT pg_catalog.pg_notify($1::text, 'requeue')`

// lockTimeout is how long a row is waited for. A relay holds it while it waits
// for Kafka, ten seconds by default.
const lockTimeout = 30 * time.Second

// settingsSQL overrides what the role may have set, for one transaction, and keeps
// its statements on the indexes, whatever the statistics of a table say that is
// mostly empty: to requeue 100,000 rows took 15 s where each batch sorted all that
// were left, and takes 2.5 s so.
const settingsSQL = `SELECT pg_catalog.set_config('lock_timeout', $1::text, true),
       pg_catalog.set_config('statement_timeout', '0', true),
       pg_catalog.set_config('enable_seqscan', 'off', true),
       pg_catalog.set_config('enable_bitmapscan', 'off', true),
       pg_catalog.set_config('enable_sort', 'off', true)`

const (
	insufficientPrivilege = "42501"
	deadlockDetected      = "40P01"
	lockNotAvailable      = "55P03"
)

// change runs do in a transaction, which wakes the relays as it commits, again
// for as long as it is the victim of a deadlock.
func (s *Store) change(ctx context.Context, do func(tx pgx.Tx) error) error {
	const attempts = 5
	for attempt := 1; ; attempt++ {
		err := pgx.BeginTxFunc(ctx, s.conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, settingsSQL, fmt.Sprintf("%dms", lockTimeout.Milliseconds())); err != nil {
				return err
			}
			if err := do(tx); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, wakeSQL, s.channel)
			return err
		})
		if sqlState(err) != deadlockDetected || attempt == attempts {
			return s.explain(err)
		}
	}
}

// explain says what to do about an error of Postgres.
func (s *Store) explain(err error) error {
	switch sqlState(err) {
	case insufficientPrivilege:
		return fmt.Errorf("%w: GRANT SELECT, UPDATE ON %s, and SELECT, UPDATE (published_at) ON %s TO this role, and USAGE on their schema (to list takes SELECT on the first)",
			err, s.failures, s.table.Sanitize())
	case lockNotAvailable:
		return fmt.Errorf("%w: another session holds one of the rows, perhaps a relay that waits for Kafka: try again", err)
	}
	return err
}

func sqlState(err error) string {
	if answer, ok := errors.AsType[*pgconn.PgError](err); ok {
		return answer.Code
	}
	return ""
}

package migrations

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
)

// Defaults of [Options]. Together they give up after about two minutes.
const (
	DefaultLockTimeout = 500 * time.Millisecond
	DefaultAttempts    = 30
)

// Options are optional settings of [Up] and [Down]; the zero value stands for
// the defaults.
type Options struct {
	// Logger gets a line for each retry and for the build of an index; default
	// is none.
	Logger *slog.Logger
	// LockTimeout is how long one attempt may wait for the table. Writers queue
	// behind it for as long. Default 500 ms. An autovacuum of the table gives way
	// only to who waits for longer than deadlock_timeout, 1 s by default.
	LockTimeout time.Duration
	// Attempts is how often a statement that found the table locked is tried in
	// all, with pauses growing to 5 s between. Default 30.
	Attempts int
}

// Result tells what [Up] did.
type Result struct {
	// Applied are the versions of the migrations that ran, in their order.
	Applied []int64
	// IndexBuilt tells that the partial index was missing on an existing table
	// and was built.
	IndexBuilt bool
}

// UpToDate tells that there was nothing to do.
func (r Result) UpToDate() bool { return len(r.Applied) == 0 && !r.IndexBuilt }

// Up makes the outbox table where it is missing, builds its index where that is
// missing, and makes the doorbell and the failure table. It can be run at any time, again, and by
// several processes at once, of which one works while the others wait. What was
// dropped or disabled by hand since the last time is made again.
//
// databaseURL has to lead to Postgres itself: a pooler in transaction mode does
// not keep the lock that excludes other processes. The role needs CREATE on the
// schema, TRIGGER on an existing table, and its ownership to build the index.
// Who owns the failure table has to grant SELECT, INSERT, UPDATE and DELETE on it
// to the relay's role, if that is another one.
//
// A *[DifferenceError] means that the table exists and differs, and that nothing
// was changed. After any other error the Result tells what was done so far, and
// Up can be run again.
func Up(ctx context.Context, databaseURL string, table pgtable.Name, opts Options) (Result, error) {
	var result Result
	err := run(ctx, databaseURL, table, opts, func(ctx context.Context, s *session, conn *pgx.Conn) error {
		return s.up(ctx, conn, &result)
	})
	if err != nil {
		return result, fmt.Errorf("migrate %s up: %w", table, err)
	}
	return result, nil
}

// run calls step with the database locked against other migrations, again for as
// long as it fails for a lock that others hold.
func run(ctx context.Context, databaseURL string, table pgtable.Name, opts Options, step func(context.Context, *session, *pgx.Conn) error) error {
	s, err := newSession(databaseURL, table, opts)
	if err != nil {
		return err
	}
	defer s.db.Close()
	return s.locked(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return s.retryLocked(ctx, conn, func(ctx context.Context) error { return step(ctx, s, conn) })
	})
}

// up is one attempt. It looks anew each time, since others may have changed the
// table meanwhile and the last attempt may have left an invalid index.
func (s *session) up(ctx context.Context, conn *pgx.Conn, result *Result) error {
	report, err := inspect(ctx, conn, s.table)
	if err != nil {
		return fmt.Errorf("look at the table: %w", err)
	}
	if !report.SchemaExists {
		return fmt.Errorf("schema %s does not exist: create it or name another one in the table's setting", quote(s.table.Schema))
	}
	if usage := "USAGE on schema " + quote(s.table.Schema); slices.Contains(report.MissingPrivileges, usage) {
		return fmt.Errorf("this role lacks %s: grant it, and CREATE on the schema", usage)
	}
	if len(report.Differences) > 0 {
		return &DifferenceError{Table: s.table, Differences: report.Differences}
	}
	if report.FailureTableFault != "" && !report.failuresLost {
		return fmt.Errorf("table %s is not the one that the relay makes, nothing was changed: %s: rename or drop it, and run this again",
			s.table.Sibling(FailureTable), report.FailureTableFault)
	}
	if err := s.checkOnlyTable(ctx, conn); err != nil {
		return err
	}
	if report.Exists && report.IndexMissing {
		if err := s.buildIndex(ctx, conn, report); err != nil {
			return err
		}
		result.IndexBuilt = true
	}
	return s.apply(ctx, report, result)
}

const otherTableSQL = `
SELECT c.relname::text
FROM pg_catalog.pg_trigger t
JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE t.tgname = '` + doorbell + `' AND n.nspname = $1::text AND c.relname <> $2::text
LIMIT 1`

// checkOnlyTable refuses a second outbox table in a schema: both would share the
// version table, and the second would look migrated.
func (s *session) checkOnlyTable(ctx context.Context, conn *pgx.Conn) error {
	var others []string
	rows, err := conn.Query(ctx, otherTableSQL, s.table.Schema, s.table.Table)
	if err == nil {
		others, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil {
		return fmt.Errorf("look for other outbox tables in schema %s: %w", quote(s.table.Schema), err)
	}
	if len(others) > 0 {
		other := pgtable.Name{Schema: s.table.Schema, Table: others[0]}
		return fmt.Errorf("schema %s already serves the outbox table %s: use that one or another schema, or drop its trigger %s if it is no longer used", quote(s.table.Schema), other, doorbell)
	}
	return nil
}

// apply runs the pending migrations.
func (s *session) apply(ctx context.Context, report Report, result *Result) error {
	provider, err := s.provider()
	if err != nil {
		return err
	}
	if err := s.forgetLost(ctx, provider, report); err != nil {
		return err
	}
	applied, err := provider.Up(ctx)
	if partial, ok := errors.AsType[*goose.PartialError](err); ok {
		applied = partial.Applied
	}
	for _, migration := range applied {
		result.Applied = append(result.Applied, migration.Source.Version)
	}
	return err
}

// forgetLost strikes off the versions whose objects are gone, so that goose makes
// them again: the service may have dropped and made its table anew since.
func (s *session) forgetLost(ctx context.Context, provider *goose.Provider, report Report) error {
	statuses, err := provider.Status(ctx)
	if err != nil {
		return err
	}
	store, err := database.NewStore(database.DialectPostgres, versionTable)
	if err != nil {
		return err
	}
	for _, status := range statuses {
		version := status.Source.Version
		lost := !report.Exists ||
			version == doorbellVersion && report.DoorbellFault != "" ||
			version == failuresVersion && report.failuresLost
		if status.State != goose.StateApplied || !lost {
			continue
		}
		if err := store.Delete(ctx, s.db, version); err != nil {
			return fmt.Errorf("strike off version %d: %w", version, err)
		}
	}
	return nil
}

// provider is made anew for each attempt: it makes the version table only once,
// whether or not that succeeded.
func (s *session) provider() (*goose.Provider, error) {
	return goose.NewProvider(goose.DialectPostgres, s.db, s.files,
		goose.WithTableName(versionTable),
		goose.WithDisableGlobalRegistry(true),
		// forgetLost may leave an older version pending below a newer one.
		goose.WithAllowOutofOrder(true),
	)
}

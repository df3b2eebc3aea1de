package migrations_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
	"github.com/outbox-relay/outbox-relay/migrations"
)

const busy = "table is busy, trying again"

// holdTable leaves a transaction open that has inserted a row. end commits it.
func holdTable(t *testing.T, url string) (end func()) {
	t.Helper()
	conn := connect(t, url)
	exec(t, conn, "BEGIN; "+insertOne)
	return func() { exec(t, conn, "COMMIT") }
}

type outcome struct {
	result migrations.Result
	err    error
}

func upInBackground(t *testing.T, url string, opts migrations.Options) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		result, err := migrations.Up(t.Context(), url, table, opts)
		done <- outcome{result, err}
	}()
	return done
}

// waitForWaiter waits until a session waits for a lock of that kind.
func waitForWaiter(t *testing.T, conn *pgx.Conn, condition string) {
	t.Helper()
	testenv.Eventually(t, "a session that waits for a lock with "+condition, func() bool {
		return query[bool](t, conn, "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT l.granted AND a.datname = current_database() AND "+condition+")")
	})
}

// An insert that comes while Up waits for the table queues behind it. It has to
// get through although the holder that both wait for never ends.
func TestABusyTableIsNotBlockedByAWaitingUp(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	testenv.OutboxTable(t, url)
	writer := connect(t, url)
	end := holdTable(t, url)
	log := testenv.Logs(t)
	done := upInBackground(t, url, migrations.Options{Logger: log.Logger, LockTimeout: 300 * time.Millisecond})

	waitForWaiter(t, connect(t, url), "l.mode = 'ShareRowExclusiveLock'")
	exec(t, writer, insertOne)

	entry := log.WaitFor(t, busy)
	if who, _ := entry.Attrs["blocked_by"].(string); !strings.Contains(who, "idle in transaction") {
		t.Errorf("the retry is logged as blocked by %q, want the open transaction", who)
	}
	end()
	if got := <-done; got.err != nil || !slices.Equal(got.result.Applied, []int64{1, 2, 3}) {
		t.Errorf("Up gave %+v, %v, want versions 1 to 3 applied", got.result, got.err)
	}
	wantReady(t, writer, table)
}

func TestUpGivesUpOnATableThatStaysBusyAndCanBeRunAgain(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	testenv.OutboxTable(t, url)
	end := holdTable(t, url)
	log := testenv.Logs(t)
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	_, err := migrations.Up(ctx, url, table, migrations.Options{Logger: log.Logger, LockTimeout: 10 * time.Millisecond, Attempts: 2})
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pgErr.Code != "55P03" {
		t.Errorf("Up gave %v, want Postgres' error of a lock timeout", err)
	}
	if err == nil || !strings.Contains(err.Error(), "still busy after 2 attempts") || !strings.Contains(err.Error(), "00002_doorbell.sql") {
		t.Errorf("Up gave %v, want an error that names the attempts and the file", err)
	}
	if n := len(log.Entries(busy)); n != 1 {
		t.Errorf("%d retries were logged, want 1", n)
	}
	end()
	if result := up(t, url); !slices.Equal(result.Applied, []int64{2, 3}) {
		t.Errorf("the next Up applied %v, want the rest, 2 and 3", result.Applied)
	}
}

func TestUpEndsWithItsContext(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	testenv.OutboxTable(t, url)
	exec(t, connect(t, url), "DROP INDEX ix_outbox_event_unpublished")
	end := holdTable(t, url)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := migrations.Up(ctx, url, table, migrations.Options{})
		done <- err
	}()
	waitForWaiter(t, connect(t, url), "l.locktype = 'virtualxid'")
	cancel()
	if err := <-done; err == nil {
		t.Error("Up gave no error after its context had ended")
	}
	end()
	// The server may have been asked to stop before or after the build was done.
	up(t, url)
	wantReady(t, connect(t, url), table)
}

package migrations_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
	"github.com/outbox-relay/outbox-relay/migrations"
)

const dropIndex = "DROP INDEX ix_outbox_event_unpublished"

func TestAMissingIndexIsBuiltOnce(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	testenv.OutboxTable(t, url)
	conn := connect(t, url)
	exec(t, conn, dropIndex)
	if r := inspect(t, conn); !r.IndexMissing || len(r.Differences) > 0 {
		t.Errorf("Inspect gave %+v, want the index missing and no difference", r)
	}
	var (
		wg    sync.WaitGroup
		built atomic.Int32
	)
	for range 2 {
		wg.Go(func() {
			result, err := migrations.Up(t.Context(), url, table, migrations.Options{})
			if err != nil {
				t.Error(err)
			}
			if result.IndexBuilt {
				built.Add(1)
			}
		})
	}
	wg.Wait()
	if built.Load() != 1 {
		t.Errorf("the index was built %d times, want once", built.Load())
	}
	wantReady(t, conn, table)
}

// The build waits for the open transaction as long as it takes, and lets other
// writers through meanwhile.
func TestTheBuildOfTheIndexBlocksNoWriterAndKnowsNoLockTimeout(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	testenv.OutboxTable(t, url)
	conn := connect(t, url)
	exec(t, conn, dropIndex)
	end := holdTable(t, url)
	log := testenv.Logs(t)
	done := upInBackground(t, url, migrations.Options{Logger: log.Logger, LockTimeout: time.Millisecond})
	log.WaitFor(t, "building the index of unpublished rows, which waits for older transactions but blocks no writer")
	waitForWaiter(t, conn, "l.locktype = 'virtualxid'")
	exec(t, conn, insertOne)
	end()
	if got := <-done; got.err != nil || !got.result.IndexBuilt {
		t.Errorf("Up gave %+v, %v, want the index built", got.result, got.err)
	}
	if n := len(log.Entries(busy)); n != 0 {
		t.Errorf("the build was given up and begun again %d times, want it to wait", n)
	}
	wantReady(t, conn, table)
}

// The open transaction, which made a build fail, also stops the first attempts to
// remove what the build has left behind.
func TestAnInvalidIndexLeftBehindIsRebuilt(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	testenv.OutboxTable(t, url)
	conn := connect(t, url)
	exec(t, conn, dropIndex)
	end := holdTable(t, url)
	exec(t, conn, "SET lock_timeout = 10")
	if _, err := conn.Exec(t.Context(), "CREATE INDEX CONCURRENTLY ix_outbox_event_unpublished ON outbox_event (id) WHERE published_at IS NULL"); err == nil {
		t.Fatal("the build succeeded, want it to fail and to leave an invalid index")
	}
	if !query[bool](t, conn, "SELECT NOT indisvalid FROM pg_index WHERE indexrelid = 'ix_outbox_event_unpublished'::regclass") {
		t.Fatal("the index left behind is valid")
	}
	if r := inspect(t, conn); !r.IndexMissing || len(r.Differences) > 0 {
		t.Errorf("Inspect gave %+v, want the index missing and no difference", r)
	}
	log := testenv.Logs(t)
	done := upInBackground(t, url, migrations.Options{Logger: log.Logger, LockTimeout: 10 * time.Millisecond})
	log.WaitFor(t, busy)
	end()
	if got := <-done; got.err != nil || !got.result.IndexBuilt {
		t.Errorf("Up gave %+v, %v, want the index built", got.result, got.err)
	}
	wantReady(t, conn, table)
}

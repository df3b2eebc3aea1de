package notify

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

func TestCommitWakesASleepingRelay(t *testing.T) {
	t.Parallel()
	for _, mode := range []Mode{Adaptive, Always} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			d, _ := f.start(t, mode, far)
			f.sleep(t, d)
			waitState(t, d, "armed", armed)
			for range 3 {
				f.insert(t)
				f.waitPublished(t)
			}
		})
	}
}

func TestOffNeverTakesTheBell(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	listener := listen(t, f)
	d, _ := f.start(t, Off, 20*time.Millisecond)
	s := f.sleep(t, d)
	waitState(t, d, "sentinel", func(s State) bool { return s.Sentinel })
	for range 3 {
		s.await(t, Tick)
		f.insert(t)
	}
	if n := f.locks(t, bellClass, "ExclusiveLock"); n != 0 {
		t.Errorf("%d sessions hold the bell", n)
	}
	if n := listener.pending(t); n != 0 {
		t.Errorf("writers notified %d times", n)
	}
}

// Postgres refuses to prepare a transaction that notified: off is the mode for
// writers that do.
func TestPreparedTransactionsWorkInModeOffOnly(t *testing.T) {
	t.Parallel()
	server := testenv.Postgres(t)
	f := fixtureAt(t, server.URL())
	allowPrepared(t, f, server)

	for _, mode := range Modes {
		d, stop := f.start(t, mode, 20*time.Millisecond)
		s := f.sleep(t, d)
		if mode == Off {
			waitState(t, d, "sentinel", func(s State) bool { return s.Sentinel })
		} else {
			waitState(t, d, "armed", armed)
		}
		err := f.prepare(t, string(mode))
		if refused := err != nil; refused != (mode != Off) {
			t.Errorf("mode %s: PREPARE TRANSACTION gave %v", mode, err)
		}
		s.await(t, Tick)
		stop()
	}
}

func TestBusyRelayReleasesTheBellAndTakesItAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	d, _ := f.start(t, Adaptive, 20*time.Millisecond)
	waitState(t, d, "sentinel", func(s State) bool { return s.Sentinel })

	wait := func(rows int) {
		t.Helper()
		if _, err := d.Wait(t.Context(), Round{Rows: rows}); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Eventually(t, "armed while nothing comes", func() bool { wait(0); return d.State().Armed })
	testenv.Eventually(t, "released at a high rate", func() bool { wait(200); return !d.State().Armed })
	if n := f.locks(t, bellClass, "ExclusiveLock"); n != 0 {
		t.Errorf("%d sessions still hold the bell", n)
	}
	testenv.Eventually(t, "armed again when the rate has fallen", func() bool { wait(0); return d.State().Armed })
}

func TestArmingNeverWaitsForAWriter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	d, _ := f.start(t, Adaptive, far)
	waitState(t, d, "sentinel", func(s State) bool { return s.Sentinel })

	// A writer that found the bell free and stays open.
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	testenv.Insert(t, tx, testenv.Event{Topic: "a.b.c", Key: "k"})
	for range 20 {
		if source, err := d.Wait(t.Context(), Round{}); err != nil || source == Tick {
			t.Fatalf("Wait returned %s, %v; a poll was due", source, err)
		}
	}
	if d.State().Armed {
		t.Error("armed beside a writer that will not notify")
	}
	var waiting int
	err = f.pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted`).Scan(&waiting)
	if err != nil || waiting > 0 {
		t.Errorf("%d sessions queue for the bell (%v): writers would notify meanwhile", waiting, err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.markAll(t)
	f.sleep(t, d)
	waitState(t, d, "armed once the writer has ended", armed)
	f.insert(t)
	f.waitPublished(t)
}

// A row that is left keeps the relay awake also when a claim cannot have it:
// whoever holds it may fail without a sound.
func TestRowsLeftKeepTheRelayAwake(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.insert(t)
	d, _ := f.start(t, Always, far)
	testenv.Eventually(t, "armed", func() bool {
		if _, err := d.Wait(t.Context(), Round{}); err != nil {
			t.Fatal(err)
		}
		return d.State().Armed
	})
	for range 10 {
		source, err := d.Wait(t.Context(), Round{})
		if err != nil || source != Poll {
			t.Fatalf("Wait returned %q, %v; must poll while a row is left", source, err)
		}
	}
}

func TestFullRoundsDoNotWaitButTicksComeThrough(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	d, _ := f.start(t, Adaptive, 30*time.Millisecond)
	waitState(t, d, "listening", func(s State) bool { return s.Listening })
	testenv.Eventually(t, "a tick among full rounds", func() bool {
		source, err := d.Wait(t.Context(), Round{Rows: 50, Full: true})
		if err != nil || source != Poll && source != Tick {
			t.Fatalf("Wait returned %q, %v", source, err)
		}
		return source == Tick
	})
}

func TestTerminatedListenerComesBackOnceAndWakes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	d, _ := f.start(t, Adaptive, far)
	s := f.sleep(t, d)
	waitState(t, d, "armed", armed)
	for round := range 3 {
		f.loseListener(t)
		s.await(t, Reconnect)
		waitState(t, d, "armed again", armed)
		f.insert(t)
		f.waitPublished(t)
		if lost := len(f.log.Entries(lostLine)); lost != round+1 {
			t.Errorf("%d lines about a lost listener after %d losses", lost, round+1)
		}
	}
}

// A connection that looks healthy and hears nothing, as through a pooler, is
// found out, said once, and replaced.
func TestDeafListenerIsFoundAndReplaced(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	d, _ := f.start(t, Adaptive, far)
	f.sleep(t, d)
	waitState(t, d, "armed", armed)
	unlisten(t, d)
	f.log.WaitFor(t, "listener hears again")
	waitState(t, d, "armed again", armed)
	f.insert(t)
	f.waitPublished(t)
	if n := len(f.log.Entries(deafLine)); n != 1 {
		t.Errorf("%d lines about deafness, want 1", n)
	}
}

// Whatever the last connection left in the queue says nothing about the next
// one, and an unanswered probe does not count as heard, however many there are.
func TestUnansweredProbesNeverCountAsHeard(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	d, err := New(Config{
		ListenURL: f.url, Pool: f.pool, Table: outboxEvent, Mode: Adaptive, Tick: far, Rate: 300,
		Poll: time.Millisecond, Look: f.look, Logger: f.log.Logger,
	})
	if err != nil {
		t.Fatal(err)
	}
	d.closer, d.proven = func() {}, true
	nothing := func(context.Context, *session) error { return nil }
	for range 2 * cap(d.requests) {
		err := d.onConnection(t.Context(), time.Millisecond, nothing)
		if errors.Is(err, errDeaf) {
			t.Fatal("an answer that was not waited for counts as missing")
		}
	}
	d.heard(t.Context(), errDeaf)
	for range 2 * cap(d.requests) {
		d.heard(t.Context(), d.onConnection(t.Context(), time.Millisecond, nothing))
		if d.State().Listening {
			t.Fatal("a connection that answers nothing counts as hearing")
		}
	}
	d.dropRequests()
	if n := len(d.requests); n > 0 {
		t.Errorf("%d requests are left for the next connection", n)
	}
}

func TestAnotherRelayBecomesSentinel(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first, stopFirst := f.start(t, Adaptive, far)
	waitState(t, first, "the first is sentinel", func(s State) bool { return s.Sentinel })
	second, _ := f.start(t, Adaptive, far)
	waitState(t, second, "the second listens", func(s State) bool { return s.Listening })
	if second.State().Sentinel {
		t.Fatal("two sentinels")
	}
	f.sleep(t, second)
	stopFirst()
	waitState(t, second, "the second has taken over", func(s State) bool { return s.Sentinel && s.Armed })
	f.insert(t)
	f.waitPublished(t)
}

func TestHelpersHearTheBellToo(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	sentinel, _ := f.start(t, Always, far)
	f.sleep(t, sentinel)
	waitState(t, sentinel, "armed", armed)
	helper, _ := f.start(t, Always, far)
	s := f.sleep(t, helper)
	waitState(t, helper, "listening", func(s State) bool { return s.Listening })
	s.await(t, Reconnect)
	f.insert(t)
	f.waitPublished(t)
}

func TestTheTickNeedsNoBell(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	d, _ := f.start(t, Adaptive, 50*time.Millisecond)
	s := f.sleep(t, d)
	waitState(t, d, "armed", armed)
	// Rows that fire no trigger.
	_, err := f.pool.Exec(t.Context(), `SET session_replication_role = replica;
		INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, event_type, payload, topic, partition_key)
		VALUES (gen_random_uuid(), 'a', '1', 'a.b', '{}', 'a.b.c', 'k'); RESET session_replication_role`,
		pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	s.await(t, Tick)
	testenv.Eventually(t, "found", func() bool { left, err := f.look(t.Context()); return err == nil && !left })
}

func TestChannelFollowsARecreatedTable(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	d, _ := f.start(t, Adaptive, far)
	f.sleep(t, d)
	waitState(t, d, "armed", armed)
	if _, err := f.pool.Exec(t.Context(), `ALTER TABLE outbox_event RENAME TO old; CREATE TABLE outbox_event (LIKE old INCLUDING ALL);
		CREATE TRIGGER outbox_relay_notify AFTER INSERT ON outbox_event FOR EACH STATEMENT EXECUTE FUNCTION outbox_relay_notify()`,
		pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	f.loseListener(t)
	waitState(t, d, "armed", armed)
	f.insert(t)
	f.waitPublished(t)
}

func TestTheServerEndsTheSessionOfAFrozenRelay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	d, _ := f.start(t, Adaptive, far)
	waitState(t, d, "sentinel", func(s State) bool { return s.Sentinel })
	var timeout string
	err := d.onConnection(t.Context(), requestTimeout, func(ctx context.Context, s *session) error {
		return s.conn.QueryRow(ctx, "SHOW idle_session_timeout").Scan(&timeout)
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprint(1500*time.Millisecond.Milliseconds()) + "ms"; timeout != want {
		t.Errorf("idle_session_timeout is %s, want %s", timeout, want)
	}
}

func TestBellIsReleasedAlsoWhileClaimsComeBackFull(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	d, _ := f.start(t, Adaptive, far)
	testenv.Eventually(t, "armed", func() bool { return d.forceArm(t) })
	testenv.Eventually(t, "released under full claims", func() bool {
		if _, err := d.Wait(t.Context(), Round{Rows: 1000, Full: true}); err != nil {
			t.Fatal(err)
		}
		return !d.State().Armed
	})
}

// A release that was given up by whoever asked for it is carried out all the
// same, when the relay may be asleep already.
func TestALateReleaseWakesTheSleeper(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	d, _ := f.start(t, Adaptive, far)
	f.sleep(t, d)
	for range 5 {
		waitState(t, d, "armed", armed)
		err := d.onConnection(t.Context(), requestTimeout, func(ctx context.Context, s *session) error { return s.disarm(ctx) })
		if err != nil {
			t.Fatal(err)
		}
		f.insert(t) // in silence
		f.waitPublished(t)
	}
}

// forceArm takes the bell as a relay at rest does.
func (d *Doorbell) forceArm(t *testing.T) bool {
	t.Helper()
	err := d.onConnection(t.Context(), requestTimeout, func(ctx context.Context, s *session) error { return s.arm(ctx) })
	return err == nil && d.State().Armed
}

package notify

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/outbox-relay/outbox-relay/internal/faultproxy"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// unlisten makes a connection deaf, as a pooler would.
func unlisten(t *testing.T, d *Doorbell) {
	t.Helper()
	err := d.onConnection(t.Context(), requestTimeout, func(ctx context.Context, s *session) error {
		_, err := s.conn.Exec(ctx, "UNLISTEN *")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Neither ticks nor probes come here: what is found is found by the rows.
func TestRowsThatNobodyAnnouncedRaiseDoubt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	d, _ := f.startAt(t, f.url, Always, far, func(d *Doorbell) { d.probeEvery = far })
	testenv.Eventually(t, "armed", func() bool { return d.forceArm(t) })
	unlisten(t, d)
	// A look shortly after each row finds the next one, which nobody announced.
	for range 3 {
		if source, err := d.Wait(t.Context(), Round{Rows: 1}); err != nil || source == Tick {
			t.Fatalf("Wait returned %q, %v", source, err)
		}
	}
	f.log.WaitFor(t, deafLine)
}

func TestALoneRowCostsOneLookMore(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	d, _ := f.startAt(t, f.url, Always, far, func(d *Doorbell) { d.probeEvery = far })
	testenv.Eventually(t, "armed", func() bool { return d.forceArm(t) })
	for { // the wake by the start
		ctx, cancel := context.WithTimeout(t.Context(), 2*confirmAfter)
		_, err := d.Wait(ctx, Round{})
		cancel()
		if err != nil {
			break
		}
	}
	if source, err := d.Wait(t.Context(), Round{Rows: 1}); err != nil || source != Poll {
		t.Fatalf("Wait returned %q, %v; want one poll", source, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*confirmAfter)
	defer cancel()
	if source, err := d.Wait(ctx, Round{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait returned %q, %v; want sleep", source, err)
	}
}

// A slow network is no deaf listener: doubt comes and goes, and nothing is
// logged or connected anew.
func TestASlowNetworkIsNotTakenForDeafness(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	network, through := testenv.Network(t, f.url)
	d, _ := f.startAt(t, through, Adaptive, far, func(d *Doorbell) { d.probeEvery = 50 * time.Millisecond })
	f.sleep(t, d)
	waitState(t, d, "armed", armed)
	network.Set(faultproxy.Delayed(200 * time.Millisecond))
	connections := network.Accepted()
	testenv.Eventually(t, "answers are late", d.doubtful.Load)
	for range 5 {
		f.insert(t)
		f.waitPublished(t)
		testenv.Eventually(t, "an answer arrives", func() bool { return !d.doubtful.Load() })
		testenv.Eventually(t, "the next is late", d.doubtful.Load)
	}
	network.Set(faultproxy.Fault{})
	waitState(t, d, "armed", armed)
	if n := len(f.log.Entries(deafLine, lostLine)); n != 0 || network.Accepted() != connections {
		t.Errorf("%d lines about a lost listener, %d new connections", n, network.Accepted()-connections)
	}
}

func TestRefusedConnectionsAreRetriedAndSaidOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	network, through := testenv.Network(t, f.url)
	d, _ := f.startAt(t, through, Adaptive, far, func(d *Doorbell) { d.probeEvery = 50 * time.Millisecond })
	f.sleep(t, d)
	waitState(t, d, "armed", armed)

	network.Refuse()
	testenv.Eventually(t, "several attempts", func() bool { return d.attempts.Load() > 5 })
	f.insert(t)
	f.waitPublished(t) // by the polls of a relay that is deaf
	if err := network.Accept(); err != nil {
		t.Fatal(err)
	}
	waitState(t, d, "armed", armed)
	f.insert(t)
	f.waitPublished(t)
	if lost, up := len(f.log.Entries(lostLine)), len(f.log.Entries("listening")); lost != 1 || up != 2 {
		t.Errorf("%d lines about a lost listener and %d about one that listens, want 1 and 2", lost, up)
	}
}

// The LISTENs go out when nothing probes the connection yet.
func TestSilenceWhileConnectingIsFoundToo(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	network, through := testenv.Network(t, f.url)
	var cut bool
	d, _ := f.startAt(t, through, Adaptive, far, func(d *Doorbell) {
		d.probeEvery = 50 * time.Millisecond
		d.afterSetUp = func() {
			if !cut {
				cut = true
				network.SetOpen(faultproxy.Silent)
			}
		}
	})
	f.sleep(t, d)
	f.log.WaitFor(t, lostLine)
	waitState(t, d, "armed by another connection", armed)
	f.insert(t)
	f.waitPublished(t)
}

// After a failover the name of the server means another address.
func TestNamesAreResolvedAnewForEachConnection(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	before, _ := testenv.Network(t, f.url)
	after, _ := testenv.Network(t, f.url)
	addresses := make(chan string, 1)
	addresses <- before.Addr()
	d, _ := f.startAt(t, f.url, Adaptive, far, func(d *Doorbell) {
		d.probeEvery = 50 * time.Millisecond
		d.connConfig.LookupFunc = func(context.Context, string) ([]string, error) {
			address := <-addresses
			addresses <- address
			return []string{address}, nil
		}
	})
	f.sleep(t, d)
	waitState(t, d, "armed", armed)
	<-addresses
	addresses <- after.Addr()
	before.Refuse()
	testenv.Eventually(t, "connected to the new address", func() bool { return after.Open() == 1 })
	waitState(t, d, "armed", armed)
	f.insert(t)
	f.waitPublished(t)
}

// A pool that does not work sends no probes, and the server ends the session
// that hears none. That is said once, not with every attempt.
func TestAListenerWaitsForThePool(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	network, through := testenv.Network(t, f.url)
	direct := f.pool
	f.pool = testenv.Pool(t, through)
	d, _ := f.start(t, Adaptive, far)
	waitState(t, d, "listening", func(s State) bool { return s.Listening })
	network.Refuse()
	f.log.WaitFor(t, lostLine)
	testenv.Eventually(t, "several attempts", func() bool { return d.attempts.Load() > 5 })
	var sessions int
	err := direct.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'outbox-relay'`).Scan(&sessions)
	if err != nil || sessions != 0 {
		t.Errorf("%d sessions of a listener that nothing could wake, %v", sessions, err)
	}
	if err := network.Accept(); err != nil {
		t.Fatal(err)
	}
	waitState(t, d, "listening again", func(s State) bool { return s.Listening })
	if lost, up := len(f.log.Entries(lostLine)), len(f.log.Entries("listening")); lost != 1 || up != 2 {
		t.Errorf("%d lines about a lost listener and %d about one that listens, want 1 and 2", lost, up)
	}
}

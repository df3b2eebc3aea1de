package notify

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// glances counts what doorbells at rest ask.
type glances struct {
	f     *fixture
	pool  atomic.Int64
	conn  atomic.Int64
	fails atomic.Bool
}

func (g *glances) glance(ctx context.Context, q Querier, also string, dest ...any) (left bool, err error) {
	if q == Querier(g.f.pool) {
		g.pool.Add(1)
	} else {
		g.conn.Add(1)
	}
	if g.fails.Load() {
		return false, context.DeadlineExceeded
	}
	dest = append([]any{&left}, dest...)
	err = q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM outbox_event WHERE published_at IS NULL)`+also).Scan(dest...)
	return left, err
}

func (f *fixture) glances() *glances { return &glances{f: f} }

// silently inserts a row without a sound, as replication does.
func (f *fixture) silently(t *testing.T) {
	t.Helper()
	if _, err := f.pool.Exec(t.Context(), `ALTER TABLE outbox_event DISABLE TRIGGER USER`); err != nil {
		t.Fatal(err)
	}
	f.insert(t)
}

// The sentinel's probe looks for rows on the listening connection, so that its
// ticks need no statement of their own.
func TestSentinelAtRestLooksOnTheListeningConnection(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	g := f.glances()
	d, _ := f.start(t, Adaptive, 200*time.Millisecond, func(cfg *Config) { cfg.Glance = g.glance })
	s := f.sleep(t, d)
	waitState(t, d, "armed", armed)
	onPool := g.pool.Load()
	seen := g.conn.Load()
	testenv.Eventually(t, "a few looks", func() bool { return g.conn.Load() >= seen+8 })
	if more := g.pool.Load() - onPool; more > 1 {
		t.Errorf("%d looks from the pool beside 8 on the listening connection", more)
	}
	f.silently(t)
	s.await(t, Tick)
	f.waitPublished(t)
}

// If the look on the listening connection fails, the tick looks itself, and if
// that fails too, it wakes.
func TestATickThatCannotLookWakes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	g := f.glances()
	d, _ := f.start(t, Adaptive, 50*time.Millisecond, func(cfg *Config) { cfg.Glance = g.glance })
	s := f.sleep(t, d)
	waitState(t, d, "armed", armed)
	g.fails.Store(true)
	s.await(t, Tick)
	s.await(t, Tick)
	g.fails.Store(false)
	f.silently(t)
	f.waitPublished(t)
}

// A helper at rest asks once a tick, and learns from the same statement that
// the sentinel has gone.
func TestHelperAtRestTakesOver(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	g := f.glances()
	first, stopFirst := f.start(t, Adaptive, 50*time.Millisecond, func(cfg *Config) { cfg.Glance = f.glances().glance })
	f.sleep(t, first)
	waitState(t, first, "armed", armed)
	f.helperProbe = time.Hour // it does not find out by its probe
	helper, _ := f.start(t, Adaptive, 50*time.Millisecond, func(cfg *Config) { cfg.Glance = g.glance })
	f.sleep(t, helper)
	waitState(t, helper, "listening", func(s State) bool { return s.Listening })
	asked := g.pool.Load()
	testenv.Eventually(t, "a few ticks", func() bool { return g.pool.Load() >= asked+5 })
	if n := g.conn.Load(); n > 0 {
		t.Errorf("a helper looked %d times on its listening connection", n)
	}
	stopFirst()
	waitState(t, helper, "sentinel", func(s State) bool { return s.Sentinel && s.Armed })
	f.silently(t)
	f.waitPublished(t)
}

// Relays whose claims come back full find each other, and part when they do
// not.
func TestRelaysThatDrainAreATeam(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var bells []*Doorbell
	for range 3 {
		d, _ := f.start(t, Adaptive, far)
		waitState(t, d, "listening", func(s State) bool { return s.Listening })
		bells = append(bells, d)
	}
	drain := func(bells []*Doorbell) {
		for _, d := range bells {
			if _, err := d.Wait(t.Context(), Round{Rows: 100, Full: true}); err != nil {
				t.Fatal(err)
			}
		}
	}
	testenv.Eventually(t, "a team of three, each with a rank of its own", func() bool {
		drain(bells)
		ranks := map[int]bool{}
		for _, d := range bells {
			if s := d.State(); s.Team == 3 {
				ranks[s.Rank] = true
			}
		}
		return len(ranks) == 3 && ranks[0] && ranks[1] && ranks[2]
	})
	testenv.Eventually(t, "a team of two when one has nothing more to do", func() bool {
		drain(bells[:2])
		return bells[0].State().Team == 2 && bells[1].State().Team == 2 && bells[2].State().Team == 0
	})
}

// While some writer's transaction keeps the bell from being taken, an idle
// relay looks and does not claim.
func TestIdleRelayBesideAnOpenWriterOnlyLooks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	g := f.glances()
	d, _ := f.start(t, Adaptive, far, func(cfg *Config) { cfg.Glance = g.glance })
	waitState(t, d, "sentinel", func(s State) bool { return s.Sentinel })
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	testenv.Insert(t, tx, testenv.Event{Topic: "a.b.c", Key: "k"})
	woken := make(chan Source, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if source, err := d.Wait(ctx, Round{}); err == nil {
				woken <- source
			}
		}
	}()
	defer func() { cancel(); <-done }()
	asked := g.pool.Load()
	testenv.Eventually(t, "many looks", func() bool { return g.pool.Load() > asked+30 })
	early := len(woken)
	testenv.Eventually(t, "many more", func() bool { return g.pool.Load() > asked+60 })
	if more := len(woken) - early; more > 1 {
		t.Errorf("%d claims for nothing beside 30 looks", more)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the row wakes", func() bool { return len(woken) > early })
}

// Also where ticks are rare, a helper finds out soon that nobody is left to hear
// writers.
func TestHelperWithARareTickTakesOver(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first, stopFirst := f.start(t, Adaptive, far, func(cfg *Config) { cfg.Glance = f.glances().glance })
	f.sleep(t, first)
	waitState(t, first, "armed", armed)
	f.helperProbe = time.Hour
	helper, _ := f.start(t, Adaptive, far, func(cfg *Config) { cfg.Glance = f.glances().glance })
	f.sleep(t, helper)
	waitState(t, helper, "listening", func(s State) bool { return s.Listening })
	stopFirst()
	waitState(t, helper, "sentinel", func(s State) bool { return s.Sentinel && s.Armed })
}

// A helper in doubt does not wait for its rare probe to be sure again.
func TestHelperInDoubtProbes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first, _ := f.start(t, Adaptive, far)
	waitState(t, first, "sentinel", func(s State) bool { return s.Sentinel })
	f.helperProbe = time.Hour
	helper, _ := f.start(t, Adaptive, far)
	waitState(t, helper, "listening", func(s State) bool { return s.Listening })
	helper.doubtful.Store(true) // as by an answer that came just when it was late
	testenv.Eventually(t, "no doubt", func() bool { return !helper.doubtful.Load() })
}

// A request that its caller gave up may still release the bell. The caller, who
// sleeps because it was held, is woken.
func TestBellReleasedLateWakes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	d, _ := f.startAt(t, f.url, Adaptive, far, func(d *Doorbell) { d.probeEvery = time.Hour })
	f.sleep(t, d)
	waitState(t, d, "armed", armed)
	released := make(chan struct{})
	err := d.onConnection(t.Context(), doubtAfter/2, func(ctx context.Context, s *session) error {
		defer close(released)
		if _, err := s.conn.Exec(ctx, "SELECT pg_sleep(0.2)"); err != nil {
			return err
		}
		return s.disarm(ctx)
	})
	if err == nil {
		t.Fatal("the request was not given up")
	}
	<-released
	f.insert(t)
	f.waitPublished(t)
}

// consume is sleep with rounds that tell how many rows they marked.
func (f *fixture) consume(t *testing.T, d *Doorbell) *sleeper {
	t.Helper()
	s := &sleeper{woken: make(chan Source, 1024)}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for rows := 0; ctx.Err() == nil; {
			source, err := d.Wait(ctx, Round{Rows: rows})
			if rows = 0; err != nil {
				continue
			}
			tag, _ := f.pool.Exec(ctx, `UPDATE outbox_event SET published_at = now() WHERE published_at IS NULL`)
			if rows = int(tag.RowsAffected()); rows > 0 {
				s.woken <- source
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return s
}

// A table that was dropped and restored has another bell.
func TestRestoredTableIsHeard(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	d, _ := f.start(t, Adaptive, 200*time.Millisecond, func(cfg *Config) { cfg.Glance = f.glances().glance })
	s := f.consume(t, d)
	waitState(t, d, "armed", armed)
	if _, err := f.pool.Exec(t.Context(), `ALTER TABLE outbox_event RENAME TO before;
		CREATE TABLE outbox_event (LIKE before INCLUDING ALL);
		CREATE TRIGGER outbox_relay_notify AFTER INSERT ON outbox_event FOR EACH STATEMENT
			WHEN (NOT pg_try_advisory_xact_lock_shared(1868724322, 'outbox_event'::regclass::oid::int4))
			EXECUTE FUNCTION outbox_relay_notify();
		DROP TABLE before`, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "a writer rings", func() bool {
		f.insert(t)
		select {
		case source := <-s.woken:
			return source == Notify
		case <-time.After(100 * time.Millisecond):
			return false
		}
	})
}

// While all that is left is held by somebody else, polls grow rare.
func TestRelayBesideAHeldRowPollsSeldom(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.insert(t)
	d, _ := f.start(t, Adaptive, far)
	for !d.State().Armed {
		if _, err := d.Wait(t.Context(), Round{}); err != nil {
			t.Fatal(err)
		}
	}
	d.waiter.lastRow = d.waiter.lastRow.Add(-time.Minute)
	d.waiter.lastNone = d.waiter.lastNone.Add(-time.Minute)
	began := time.Now()
	for range 4 {
		if source, err := d.Wait(t.Context(), Round{}); err != nil || source != Poll {
			t.Fatalf("%s, %v", source, err)
		}
	}
	if took := time.Since(began); took < 3*heldPoll {
		t.Errorf("polled 4 times in %s", took)
	}
}

package notify

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

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

package notify

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
	"github.com/outbox-relay/outbox-relay/migrations"
)

// far is a tick that never comes in a test: what wakes is the bell.
const far = time.Minute

type fixture struct {
	url  string
	pool *pgxpool.Pool
	log  *testenv.Log

	helperProbe time.Duration
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{url: testenv.Database(t), log: testenv.Logs(t), helperProbe: 50 * time.Millisecond}
	if _, err := migrations.Up(t.Context(), f.url, outboxEvent, migrations.Options{Logger: f.log.Logger}); err != nil {
		t.Fatal(err)
	}
	f.pool = testenv.Pool(t, f.url)
	return f
}

var outboxEvent = pgtable.Name{Schema: "public", Table: "outbox_event"}

// start runs a doorbell until the test ends or the returned function is called.
func (f *fixture) start(t *testing.T, mode Mode, tick time.Duration, change ...func(*Config)) (*Doorbell, func()) {
	t.Helper()
	return f.startAt(t, f.url, mode, tick, func(d *Doorbell) {
		d.probeEvery, d.helperProbe = 50*time.Millisecond, f.helperProbe
		for _, apply := range change {
			apply(&d.cfg)
		}
	})
}

// startAt is start with a listener elsewhere.
func (f *fixture) startAt(t *testing.T, url string, mode Mode, tick time.Duration, change func(*Doorbell)) (*Doorbell, func()) {
	t.Helper()
	d, err := New(Config{
		ListenURL: url, Pool: f.pool, Table: outboxEvent,
		Mode: mode, Tick: tick, Rate: 300, Poll: time.Millisecond,
		Look: f.look, Logger: f.log.Logger,
	})
	if err != nil {
		t.Fatal(err)
	}
	change(d)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	stop := func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("doorbell stopped with %v", err)
		}
		done <- nil
	}
	t.Cleanup(stop)
	return d, stop
}

func (f *fixture) look(ctx context.Context) (left bool, err error) {
	err = f.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM outbox_event WHERE published_at IS NULL)`).Scan(&left)
	return left, err
}

func (f *fixture) insert(t *testing.T) {
	t.Helper()
	testenv.Insert(t, f.pool, testenv.Event{Topic: "a.b.c", Key: "k"})
}

func (f *fixture) markAll(t *testing.T) {
	t.Helper()
	if _, err := f.pool.Exec(t.Context(), `UPDATE outbox_event SET published_at = now() WHERE published_at IS NULL`); err != nil {
		t.Fatal(err)
	}
}

// waitPublished waits until a sleeper has been woken for every row. With a far
// tick, nothing but the bell can have done that. What Wait returned does not
// matter: a notification that comes before the look is answered by the look.
func (f *fixture) waitPublished(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, "the sleeper was woken for the row", func() bool {
		left, err := f.look(t.Context())
		return err == nil && !left
	})
}

// waitState waits until the doorbell is in a state.
func waitState(t *testing.T, d *Doorbell, what string, ok func(State) bool) {
	t.Helper()
	testenv.Eventually(t, what, func() bool { return ok(d.State()) })
}

// sleeper is a relay that only waits: each return of Wait is sent to woken.
type sleeper struct {
	woken chan Source
}

// sleep calls Wait again and again with empty rounds, and marks all rows after
// each wake, as if it had published them.
func (f *fixture) sleep(t *testing.T, d *Doorbell) *sleeper {
	t.Helper()
	s := &sleeper{woken: make(chan Source, 1024)}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			source, err := d.Wait(ctx, Round{})
			if err != nil {
				continue
			}
			_, _ = f.pool.Exec(ctx, `UPDATE outbox_event SET published_at = now() WHERE published_at IS NULL`)
			if source != Poll {
				s.woken <- source
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return s
}

// await waits for a wake of the given source and drops others before it.
func (s *sleeper) await(t *testing.T, want Source) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		select {
		case got := <-s.woken:
			if got == want {
				return
			}
		case <-deadline:
			t.Fatalf("no wake by %s", want)
		}
	}
}

func armed(s State) bool { return s.Armed }

// locks counts the sessions that hold one of the advisory locks in the test's
// database.
func (f *fixture) locks(t *testing.T, class int32, mode string) (n int) {
	t.Helper()
	err := f.pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks
		WHERE locktype = 'advisory' AND classid::bigint = $1 AND mode = $2 AND granted
		  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, int64(class), mode).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

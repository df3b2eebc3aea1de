package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// A writer draws the id of its row, and stalls before its transaction has an id
// of its own: no snapshot tells of it. A bound by snapshots alone goes past that
// row, and the next event of its key overtakes it. The relay's own does not.
func TestBoundWaitsForAWriterThatNoSnapshotShows(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.bounded()
	f.exec(t, `
		CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS
			'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END';
		CREATE TRIGGER stall BEFORE INSERT ON outbox_event FOR EACH ROW
			WHEN (NEW.event_type = 'stalls') EXECUTE FUNCTION stall()`)
	// A sequence logs every 32nd id, and that one does give its transaction an id.
	testenv.Insert(t, f.pool, testenv.Sequence("a.b.c", 10, "other")...)
	gate, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = gate.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := gate.Exec(t.Context(), `SELECT pg_advisory_xact_lock(1)`); err != nil {
		t.Fatal(err)
	}
	first := testenv.Event{Topic: "a.b.c", Key: "k", Type: "stalls", Payload: testenv.Payload(1)}
	written := make(chan error, 1)
	go func() {
		_, err := testenv.InsertInto(t.Context(), f.pool, pgx.Identifier{"outbox_event"}, first)
		written <- err
	}()
	testenv.Eventually(t, "the writer stalls without a transaction id", func() bool {
		var stalled bool
		err := f.pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			 WHERE datname = current_database() AND wait_event = 'advisory' AND backend_xid IS NULL)`).Scan(&stalled)
		return err == nil && stalled
	})

	testenv.Insert(t, f.pool, testenv.Sequence("a.b.c", 10, "other")...)
	f.markAll(t)
	// Nothing that a snapshot shows is unpublished, and no transaction with an
	// id is under way in this table.
	obvious := b.state(t)
	if obvious.lowest != 0 {
		t.Fatalf("row %d is visible as unpublished", obvious.lowest)
	}
	for range 5 {
		b.move(t)
	}
	if got := b.low.bound(0).id; got > 10 {
		t.Errorf("the bound went to %d while row 11 was still to come", got)
	}

	if err := gate.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	// The next event of the key, written after the first was committed.
	testenv.Insert(t, f.pool, testenv.Event{Topic: "a.b.c", Key: "k", Payload: testenv.Payload(2)})
	claimed := func(above bound) (payloads []string) {
		for _, e := range b.claim(t, above).events {
			payloads = append(payloads, string(e.payload))
		}
		return payloads
	}
	if got, want := claimed(b.low.bound(0)), []string{`{"seq": 1}`, `{"seq": 2}`}; !slices.Equal(got, want) {
		t.Errorf("above the bound stand %v, want %v", got, want)
	}
	if got, want := claimed(bound{id: obvious.highest, table: obvious.table}), []string{`{"seq": 2}`}; !slices.Equal(got, want) {
		t.Errorf("above the obvious bound stand %v, want the disorder %v: this test does not exercise what it is for", got, want)
	}

	f.markAll(t)
	b.move(t)
	b.move(t)
	if got := b.low.bound(0).id; got != b.state(t).highest {
		t.Errorf("with all published the bound is %d, want the last row's", got)
	}
}

// While a transaction holds the horizon, nothing removes the dead entries of
// published rows. A claim above the bound does not even see them.
func TestClaimsAboveTheBoundDoNotReadWhatIsPublished(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.bounded()
	horizon, err := f.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = horizon.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := horizon.Exec(t.Context(), `SELECT FROM outbox_event`); err != nil {
		t.Fatal(err)
	}
	f.exec(t, fill(20_000, "NULL"))
	f.markAll(t)
	f.exec(t, fill(5, "NULL"))
	b.move(t)
	b.move(t)
	above := b.low.bound(0)
	if above.id != 20_000 {
		t.Fatalf("the bound is %d, want the last published row's id, 20000", above.id)
	}
	from, fromStart := f.buffers(t, b.sql, above), f.buffers(t, b.sql, bound{})
	t.Logf("a claim reads %d pages above the bound, %d without", from, fromStart)
	if from*4 > fromStart {
		t.Errorf("a claim reads %d pages above the bound and %d without", from, fromStart)
	}
}

// What comes to be below the bound in other ways than by an id that was drawn
// is found by the sweep, and the bound goes back.
func TestSweepFindsRowsBelowTheBound(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	r := f.start(t)
	testenv.Insert(t, f.pool, testenv.Sequence(topic, 6000, "a", "b")...)
	f.waitDrained(t)
	testenv.Eventually(t, "the bound has moved", func() bool {
		testenv.Insert(t, f.pool, testenv.Event{Topic: topic, Key: "c"})
		return r.low.bound(0).id > 1000
	})
	f.exec(t, `UPDATE outbox_event SET published_at = NULL WHERE id IN (10, 11)`)
	f.waitDrained(t)
	if got := r.low.bound(0).id; got >= 10 {
		t.Errorf("the bound is %d, though row 10 was found below it", got)
	}
}

// A sweep that takes longer than a statement may is said to, and holds up
// nothing: what comes above the bound is published meanwhile.
func TestSweepThatTakesTooLongHoldsUpNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	r := f.startWith(t, func(r *Relay) {
		r.sql.below = strings.Replace(r.sql.below, "published_at IS NULL",
			"(SELECT pg_sleep(60) IS NOT NULL) AND published_at IS NULL", 1)
	}, func(cfg *Config) { cfg.PublishTimeout = 2 * time.Second })
	testenv.Insert(t, f.pool, testenv.Sequence(topic, 6000, "a", "b")...)
	f.waitDrained(t)
	testenv.Eventually(t, "the bound has moved", func() bool {
		testenv.Insert(t, f.pool, testenv.Event{Topic: topic, Key: "c"})
		return r.low.bound(0).id > 1000
	})
	testenv.Eventually(t, "a sweep fails", func() bool {
		testenv.Insert(t, f.pool, testenv.Event{Topic: topic, Key: "c"})
		return len(f.log.Entries(slowLowWater)) > 0
	})
	f.waitDrained(t)
	if n := len(f.log.Entries("server unavailable, nothing is lost and it is tried until it is back")); n > 0 {
		t.Error("the sweep counts as an outage of the database")
	}
}

// A table that was truncated starts its ids over. The old bound would split its
// rows in two, and publish the later ones first.
func TestTruncatedTableKeepsItsOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.bounded()
	f.exec(t, fill(20, "now()"))
	b.move(t)
	b.move(t)
	above := b.low.bound(0)
	if above.id != 20 {
		t.Fatalf("the bound is %d, want 20", above.id)
	}
	f.exec(t, `TRUNCATE outbox_event RESTART IDENTITY`)
	f.exec(t, fill(40, "NULL"))
	if c := b.claim(t, above); c.first != 1 || c.walked != 40 {
		t.Errorf("a claim starts at row %d and sees %d rows, want all 40 from the first", c.first, c.walked)
	}
	if lowest := b.state(t).lowest; lowest != 1 {
		t.Errorf("the lowest unpublished row is said to be %d, want 1", lowest)
	}
}

func TestLowWaterBound(t *testing.T) {
	t.Parallel()
	state := func(highest, lowest int64, holders ...string) tableState {
		return tableState{table: "first", highest: highest, lowest: lowest, holders: holders}
	}
	promoted := state(50, 0)
	promoted.table = "promoted"
	for name, tc := range map[string]struct {
		states []tableState
		want   int64
	}{
		"one state shows nothing":                   {[]tableState{state(100, 0)}, 0},
		"two do, with nobody writing":               {[]tableState{state(100, 0), state(120, 0)}, 100},
		"a writer is waited for":                    {[]tableState{state(100, 0, "3/7"), state(120, 0, "3/7")}, 0},
		"a writer that came later is not":           {[]tableState{state(100, 0), state(120, 0, "3/8")}, 100},
		"one of two writers is left":                {[]tableState{state(100, 0, "3/7", "4/1"), state(120, 0, "4/1", "3/8")}, 0},
		"its end lets the bound move":               {[]tableState{state(100, 0, "3/7"), state(110, 0, "3/7"), state(120, 0, "3/8")}, 100},
		"the next id is waited for anew":            {[]tableState{state(100, 0), state(120, 0, "3/8"), state(130, 0, "3/8")}, 100},
		"a prepared transaction has another name":   {[]tableState{state(100, 0, "3/7"), state(120, 0, "-1/845")}, 0},
		"an unpublished row is not passed":          {[]tableState{state(100, 0), state(120, 40)}, 39},
		"one beyond the id does not matter":         {[]tableState{state(100, 0), state(120, 110)}, 100},
		"another server knows nothing of the first": {[]tableState{state(100, 0), promoted}, 0},
		"and starts anew":                           {[]tableState{state(100, 0), state(100, 0), promoted, promoted}, 50},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var l lowWater
			for _, s := range tc.states {
				l.learn(time.Now(), s)
			}
			if got := l.bound(0).id; got != tc.want {
				t.Errorf("the bound is %d, want %d", got, tc.want)
			}
		})
	}
}

// A bound that cannot move is asked about ever less, up to once a second.
func TestBoundThatCannotMoveIsLeftAlone(t *testing.T) {
	t.Parallel()
	for name, stuck := range map[string]tableState{
		"beside a row that waits":             {table: "t", highest: 9000, lowest: 1},
		"beside a writer's open transaction ": {table: "t", highest: 9000, holders: []string{"3/7"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var l lowWater
			now, tries := time.Now(), 0
			for end := now.Add(10 * time.Second); now.Before(end); now = now.Add(time.Millisecond) {
				if l.due(now) {
					l.learn(now, stuck)
					tries++
				}
			}
			if tries > 20 {
				t.Errorf("asked %d times in 10 s", tries)
			}
			now = now.Add(time.Second)
			l.learn(now, tableState{table: "t", highest: 9000})
			if now = now.Add(time.Second); l.bound(0).id != 9000 {
				l.learn(now, tableState{table: "t", highest: 9000})
			}
			if !l.due(now.Add(lowWaterPause)) {
				t.Error("goes on with the long pause after the bound has moved")
			}
		})
	}
}

// bounded is a low-water bound that a test moves by hand.
type bounded struct {
	f   *fixture
	sql statements
	low lowWater
}

func (f *fixture) bounded() *bounded {
	table := pgtable.Name{Schema: "public", Table: "outbox_event"}
	return &bounded{f: f, sql: newStatements(table, &f.cfg)}
}

func (b *bounded) state(t *testing.T) tableState {
	t.Helper()
	conn, err := b.f.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	state, err := b.sql.tableState(t.Context(), conn, "public.outbox_event", exclusions{}, b.low.bound(0))
	if err != nil {
		t.Fatal(err)
	}
	return state
}

func (b *bounded) move(t *testing.T) {
	t.Helper()
	b.low.learn(time.Now(), b.state(t))
}

// claim returns what a claim would publish, and gives the rows free.
func (b *bounded) claim(t *testing.T, above bound) claim {
	t.Helper()
	conn, err := b.f.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	c, err := b.sql.take(t.Context(), conn, window{limit: 50, batch: 50, slices: 1, bytes: 1 << 20, above: above}, OrderKey)
	if err != nil {
		t.Fatal(err)
	}
	if err := rollback(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	return c
}

func (f *fixture) markAll(t *testing.T) {
	t.Helper()
	f.exec(t, `UPDATE outbox_event SET published_at = now() WHERE published_at IS NULL`)
}

// buffers counts the pages that a claim reads.
func (f *fixture) buffers(t *testing.T, sql statements, above bound) (pages int) {
	t.Helper()
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), sql.settings, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	rows, err := tx.Query(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) "+sql.claim, pgx.QueryExecModeExec,
		above.id, above.table, 50, 1, 0, []string{}, []string{}, []int64{}, 8192)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		if line = strings.TrimSpace(line); pages == 0 && strings.HasPrefix(line, "Buffers: shared hit=") {
			if _, err := fmt.Sscanf(line, "Buffers: shared hit=%d", &pages); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return pages
}

// Whoever waits besides changes nothing about the rows below the bound; whoever
// is let in may have some there.
func TestBoundHoldsUntilARowIsLetInAgain(t *testing.T) {
	t.Parallel()
	w := newWaits(&Config{RetryMin: time.Hour, RetryMax: time.Hour}, slog.New(slog.DiscardHandler))
	first := w.exclusions().version
	w.topicFailed(t.Context(), "a", errors.New("missing"))
	w.setKeys([]waitingKey{{key: "k"}})
	w.topicFailed(t.Context(), "b", errors.New("missing"))
	if skip := w.exclusions(); skip.version != first || len(skip.topics) != 2 || len(skip.keys) != 1 {
		t.Errorf("with more left out: %+v, want version %d", skip, first)
	}
	w.setKeys([]waitingKey{{key: "l"}})
	second := w.exclusions().version
	if second == first {
		t.Error("the version is the same after a key was let in")
	}
	w.topicOnTrial("a")
	if w.exclusions().version == second {
		t.Error("the version is the same after a topic was let in")
	}
}

// A walk that took long once is a mood of the machine.
func TestSlowWalksAreToldFromASlowMoment(t *testing.T) {
	t.Parallel()
	const quick, slow, long = time.Millisecond, 2 * quickWalk, 20 * quickWalk
	for name, tc := range map[string]struct {
		walks []time.Duration
		want  bool
	}{
		"nothing is known at first": {nil, false},
		"one quick walk":            {[]time.Duration{quick}, true},
		"one slow one after it":     {[]time.Duration{quick, slow}, true},
		"two in a row":              {[]time.Duration{quick, slow, slow}, false},
		"one that is very long":     {[]time.Duration{quick, long}, false},
		"a quick one after those":   {[]time.Duration{quick, long, slow, quick}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLowWater()
			for _, took := range tc.walks {
				l.walked(took)
			}
			if l.quick() != tc.want {
				t.Errorf("quick is %v after %v", l.quick(), tc.walks)
			}
		})
	}
}

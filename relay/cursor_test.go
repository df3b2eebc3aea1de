package relay

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

func TestCursorStandsForRowsThatAreSurelyPublished(t *testing.T) {
	t.Parallel()
	const table = "first"
	with := func(change func(*window)) window {
		w := window{slices: 4, slice: 1, settled: settled{id: 1000, table: table}}
		w.above = bound{id: 100, table: table}
		if change != nil {
			change(&w)
		}
		return w
	}
	claimed := func(n int, last int64) claim { return claim{walked: n, events: make([]event, n), last: last} }
	for name, tc := range map[string]struct {
		claimed     claim
		first, next window
		want        int64
	}{
		"the end of a claim":                        {claimed(50, 400), with(nil), with(nil), 400},
		"no further than is settled":                {claimed(50, 1400), with(nil), with(nil), 1000},
		"not past a row that somebody else holds":   {claim{walked: 51, events: make([]event, 50), last: 400}, with(nil), with(nil), 100},
		"not past keys that were left out as busy":  {claimed(50, 400), with(func(w *window) { w.partial = true }), with(nil), 100},
		"not by a claim that saw nothing":           {claimed(0, 0), with(nil), with(nil), 100},
		"not in another slice":                      {claimed(50, 400), with(nil), with(func(w *window) { w.slice = 2 }), 100},
		"not among another number of them":          {claimed(50, 400), with(nil), with(func(w *window) { w.slices = 2 }), 100},
		"not once rows are let in that were out":    {claimed(50, 400), with(nil), with(func(w *window) { w.skip.version++ }), 100},
		"not once a row was found below the bound":  {claimed(50, 400), with(nil), with(func(w *window) { w.settled.takenBack++ }), 100},
		"not where the bound is further":            {claimed(50, 400), with(nil), with(func(w *window) { w.above.id = 700 }), 700},
		"not while nothing is settled at this time": {claimed(50, 400), with(func(w *window) { w.settled.id = 0 }), with(nil), 100},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var c cursor
			c.advance(tc.claimed, tc.first)
			if got := c.above(tc.next); got.id != tc.want || got.table != table {
				t.Errorf("the next claim starts above %+v, want %d", got, tc.want)
			}
		})
	}
}

// A row whose writer drew its id and has not committed yet is not passed by,
// though a worker has published all that came after it.
func TestCursorWaitsForAWriterThatIsUnderWay(t *testing.T) {
	t.Parallel()
	s := newStress(t, OrderKey)
	published := &acknowledger{}
	w := s.workers[0]
	w.publisher = published
	w.sizing.min, w.sizing.max, w.sizing.size = 10, 10, 10
	round := func() {
		t.Helper()
		if _, err := w.round(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		if w.marking != nil {
			<-w.marking.done
		}
	}
	settle := func() {
		t.Helper()
		for range 2 {
			if err := w.r.pool.AcquireFunc(t.Context(), func(conn *pgxpool.Conn) error { return w.r.moveLowWater(t.Context(), conn) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	testenv.Insert(t, s.fixture.pool, testenv.Sequence("a.b.c", 10, "other")...)
	settle()
	late, err := s.fixture.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = late.Rollback(context.WithoutCancel(t.Context())) }()
	event := func(key string, seq int) testenv.Event {
		return testenv.Event{Topic: "a.b.c", Key: key, Payload: testenv.Payload(seq)}
	}
	if _, err := testenv.InsertInto(t.Context(), late, pgx.Identifier{"outbox_event"}, event("late", 1)); err != nil {
		t.Fatal(err)
	}
	testenv.Insert(t, s.fixture.pool, testenv.Sequence("a.b.c", 40, "other")...)
	settle()
	for range 4 {
		round()
	}
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.Insert(t, s.fixture.pool, event("late", 2))
	round()
	round()
	if got, want := fmt.Sprint(published.of("late")), fmt.Sprint([]string{`{"seq": 1}`, `{"seq": 2}`}); got != want {
		t.Errorf("published %s, want %s", got, want)
	}

	testenv.Insert(t, s.fixture.pool, testenv.Sequence("a.b.c", 60, "other")...)
	settle()
	for range 3 {
		round()
	}
	if w.cursor.at.id <= 52 {
		t.Errorf("the cursor is at %d with nobody under way", w.cursor.at.id)
	}
}

// acknowledger is a publisher that takes everything.
type acknowledger struct{ events []event }

func (a *acknowledger) publish(_ context.Context, d *delivery) bool {
	for i := range d.events {
		d.set(i, nil)
	}
	a.events = append(a.events, d.events...)
	return true
}

func (*acknowledger) detach() func(context.Context) { return func(context.Context) {} }

func (*acknowledger) close() {}

func (a *acknowledger) of(key string) (payloads []string) {
	for i := range a.events {
		if a.events[i].key == key {
			payloads = append(payloads, string(a.events[i].payload))
		}
	}
	return payloads
}

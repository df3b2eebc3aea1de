package parked_test

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outbox-relay/outbox-relay/internal/parked"
)

func TestListChoosesByEachFilter(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f := newFixtureOf(t, quotedTable)
			store := f.open(t, f.with(t, "default_query_exec_mode", mode))
			a := f.fail(t, 2, "shop.a", "1", parked.Parked)
			b := f.fail(t, 1, "shop.b", "", parked.Waiting)
			old := f.fail(t, 1, "shop.b", "2", parked.Discarded)
			f.exec(t, "UPDATE "+f.failures()+" SET first_failed_at = now() - interval '2 hours' WHERE row_id = $1", a[0])
			f.exec(t, "UPDATE "+f.failures()+" SET kind = 'other' WHERE row_id = $1", b[0])
			text := func(s string) *string { return &s }
			for name, tt := range map[string]struct {
				filter parked.Filter
				want   []int64
			}{
				"no filter: what is open":      {parked.Filter{}, []int64{a[0], a[1], b[0]}},
				"a topic":                      {parked.Filter{Topic: text("shop.b")}, b},
				"the empty key, which is one":  {parked.Filter{Key: text("")}, b},
				"a kind":                       {parked.Filter{Kind: text("other")}, b},
				"a state":                      {parked.Filter{States: []string{parked.Discarded}}, old},
				"an age":                       {parked.Filter{OlderThan: time.Hour}, a[:1]},
				"a limit, lowest row id first": {parked.Filter{Limit: 1}, a[:1]},
				"all together":                 {parked.Filter{Topic: text("shop.a"), Key: text("1"), Kind: text("row"), States: parked.States, OlderThan: time.Hour, Limit: 9}, a[:1]},
				"nothing":                      {parked.Filter{Topic: text("shop.c")}, nil},
			} {
				if got := collect(t, store, tt.filter); !slices.Equal(got, tt.want) {
					t.Errorf("%s: got rows %v, want %v", name, got, tt.want)
				}
				n, err := store.Count(t.Context(), tt.filter)
				if err != nil || tt.filter.Limit == 0 && n != int64(len(tt.want)) {
					t.Errorf("%s: counted %d, %v, want %d", name, n, err, len(tt.want))
				}
			}
		})
	}
}

// The heap is read in the middle of the list, when a list that is held in memory
// would be there as a whole.
func TestListOf100000RecordsNeedsLittleMemory(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const n = 100_000
	f.exec(t, `INSERT INTO outbox_relay_failure (row_id, event_id, topic, partition_key, kind, code, error, attempts, state)
		SELECT i, gen_random_uuid(), 'shop.order', i::text, 'row', 'MESSAGE_TOO_LARGE', repeat('x', 500), 5, 'parked' FROM generate_series(1, $1::int) i`, n)
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before, highest, count := heap(), uint64(0), 0
	for _, err := range f.store.List(t.Context(), parked.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		if count++; count%20_000 == 0 {
			highest = max(highest, heap())
		}
	}
	if count != n {
		t.Errorf("listed %d records, want %d", count, n)
	}
	// The errors alone are 50 MB.
	if grown := int64(highest) - int64(before); grown > 25<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
}

func TestListMayBeBrokenOff(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.fail(t, 1000, "shop.a", "1", parked.Parked)
	for _, err := range f.store.List(t.Context(), parked.Filter{}) {
		if err != nil {
			t.Error(err)
		}
		break
	}
	if n, err := f.store.Count(t.Context(), parked.Filter{}); err != nil || n != 1000 {
		t.Errorf("after a list that was broken off: %d, %v", n, err)
	}
}

func TestShow(t *testing.T) {
	t.Parallel()
	f := newFixtureOf(t, quotedTable)
	row := f.fail(t, 1, "shop.a", "1", parked.Parked)[0]
	for _, name := range []string{fmt.Sprint(row), f.eventID(t, row), strings.ToUpper(f.eventID(t, row))} {
		d, err := f.store.Show(t.Context(), ids(t, name)[0], true)
		if err != nil {
			t.Fatal(err)
		}
		if d.RowID != row || d.State != parked.Parked || d.Attempts != 3 || d.Row == nil || d.Row.EventType != "order.confirmed" ||
			string(d.Row.Payload) != `{"total": 12345678901234567890}` || d.Row.PayloadBytes != 31 || d.Row.PublishedAt.Valid {
			t.Errorf("show %s gave %+v, row %+v", name, d, d.Row)
		}
	}
	d, err := f.store.Show(t.Context(), ids(t, fmt.Sprint(row))[0], false)
	if err != nil || d.Row.Payload != nil || d.Row.PayloadBytes != 31 {
		t.Errorf("without payload: %+v, %v", d.Row, err)
	}
	// Infinity is no reason to fail.
	f.exec(t, "UPDATE "+f.table.Sanitize()+" SET created_at = 'infinity'")
	f.exec(t, "UPDATE "+f.failures()+" SET next_attempt_at = 'infinity'")
	d, err = f.store.Show(t.Context(), ids(t, fmt.Sprint(row))[0], false)
	if err != nil || d.Row.CreatedAt.String() != "infinity" || d.NextAttemptAt.String() != "infinity" {
		t.Errorf("infinite times: %+v, %v", d, err)
	}
	// A table that was emptied counts from 1 again: another event, not this one.
	f.exec(t, "UPDATE "+f.table.Sanitize()+" SET event_id = gen_random_uuid()")
	if d, err = f.store.Show(t.Context(), ids(t, fmt.Sprint(row))[0], false); err != nil || d.Row != nil {
		t.Errorf("the row of another event is shown: %+v, %v", d.Row, err)
	}
}

func TestParseID(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"7": "7", "0042": "42", "9223372036854775807": "9223372036854775807",
		"019A3C5E-7A10-7C3E-9B0A-2F6D1C8E4B11": "019a3c5e-7a10-7c3e-9b0a-2f6d1c8e4b11",
		"":                                     "", "-1": "", "9223372036854775808": "", "7a": "", "019a3c5e-7a10": "", "1;2": "",
	} {
		id, err := parked.ParseID(text)
		if (err == nil) != (want != "") || err == nil && id.String() != want {
			t.Errorf("%q gives %s, %v, want %q", text, id, err, want)
		}
	}
}

package load

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

func TestLedgerVerdict(t *testing.T) {
	t.Parallel()
	// A step is what happens to an event: its sending (s), commit (c) or
	// arrival (r). Events a1 a2 a3 are of key a, b1 of key b.
	for _, tt := range []struct {
		name  string
		steps string
		want  Counts
		lost  int
	}{
		{"all arrive in order", "sa1 ca1 sa2 ca2 ra1 ra2", Counts{Committed: 2, Consumed: 2}, 0},
		{"a committed event that does not arrive is lost", "sa1 ca1 sa2 ca2 ra2", Counts{Committed: 2, Consumed: 1}, 1},
		{"an event without commit is not lost", "sa1 sa2 ca2 ra2", Counts{Committed: 1, Consumed: 1}, 0},
		{"an event may arrive before its writer knows of the commit", "sa1 ra1 ca1", Counts{Committed: 1, Consumed: 1}, 0},
		{"an event that arrives again is a duplicate", "sa1 ca1 ra1 ra1 ra1", Counts{Committed: 1, Consumed: 1, Duplicates: 2}, 0},
		{"an overtaken event is out of order", "sa1 ca1 sa2 ca2 ra2 ra1", Counts{Committed: 2, Consumed: 2, OutOfOrder: 1}, 0},
		{"each overtaken event counts", "sa1 sa2 sa3 ca1 ca2 ca3 ra3 ra1 ra2", Counts{Committed: 3, Consumed: 3, OutOfOrder: 2}, 0},
		{"a repeat is not out of order", "sa1 ca1 sa2 ca2 ra1 ra2 ra1", Counts{Committed: 2, Consumed: 2, Duplicates: 1}, 0},
		{"keys have no order among each other", "sb1 cb1 sa1 ca1 sa2 ca2 ra1 ra2 rb1", Counts{Committed: 3, Consumed: 3}, 0},
		{"a record that nobody wrote is unknown", "sa1 ca1 ra1 ra9", Counts{Committed: 1, Consumed: 1, Unknown: 1}, 0},
		{"sending again changes nothing", "sa1 sa1 ca1 ra1", Counts{Committed: 1, Consumed: 1}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ledger := NewLedger()
			for step := range strings.FieldsSeq(tt.steps) {
				event := Event{Key: step[1:2], Seq: int64(step[2] - '0'), Topic: "t"}
				event.ID = uuid.NewSHA1(uuid.Nil, []byte(step[1:]))
				switch step[0] {
				case 's':
					ledger.Sending(event, time.Now())
				case 'c':
					ledger.Committed(event.ID, time.Now())
				case 'r':
					ledger.Received(event.ID, time.Now())
				}
			}
			report := ledger.Report()
			if report.Counts != tt.want || report.Lost != tt.lost {
				t.Errorf("got %+v, lost %d; want %+v, lost %d", report.Counts, report.Lost, tt.want, tt.lost)
			}
		})
	}
}

func TestLedgerLatencies(t *testing.T) {
	t.Parallel()
	ledger := NewLedger()
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	usual, early := Event{ID: uuid.New(), Key: "a", Seq: 1}, Event{ID: uuid.New(), Key: "a", Seq: 2}

	ledger.Sending(usual, at(0))
	ledger.Committed(usual.ID, at(3))
	ledger.Received(usual.ID, at(5))
	// This one is consumed before its writer has read the reply to COMMIT.
	ledger.Sending(early, at(10))
	ledger.Received(early.ID, at(14))
	ledger.Committed(early.ID, at(16))
	ledger.Received(early.ID, at(900)) // a repeat has no latency

	report := ledger.Report()
	if want := []time.Duration{5 * time.Millisecond, 4 * time.Millisecond}; !slices.Equal(report.FromInsert, want) {
		t.Errorf("from insert %v, want %v", report.FromInsert, want)
	}
	if want := []time.Duration{2 * time.Millisecond, 0}; !slices.Equal(report.FromCommit, want) {
		t.Errorf("from commit %v, want %v", report.FromCommit, want)
	}
	if _, recent := ledger.Counts(1); len(recent) != 1 || recent[0] != 0 {
		t.Errorf("latencies since the first: %v, want the second only", recent)
	}
}

func TestLedgerAwaitsCommittedEvents(t *testing.T) {
	t.Parallel()
	ledger := NewLedger()
	event := Event{ID: uuid.New(), Key: "a", Seq: 1}
	ledger.Sending(event, time.Now())
	if err := ledger.Await(t.Context()); err != nil {
		t.Errorf("an event that is not committed was awaited: %v", err)
	}
	ledger.Committed(event.ID, time.Now())

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := ledger.Await(ended); err == nil || !strings.Contains(err.Error(), "1 committed events have not arrived") {
		t.Errorf("got %v, want the number of missing events", err)
	}
	arrived := make(chan error)
	go func() { arrived <- ledger.Await(t.Context()) }()
	ledger.Received(event.ID, time.Now())
	if err := <-arrived; err != nil {
		t.Errorf("await: %v", err)
	}
}

package relay

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/parked"
	"github.com/outbox-relay/outbox-relay/internal/pgtable"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// failureRecord is what a test looks at of a failure record.
type failureRecord struct {
	RowID        int64
	Topic, Code  string
	Attempts     int
	State, Cause string
}

func (f *fixture) failures(t *testing.T) []failureRecord {
	t.Helper()
	rows, err := f.pool.Query(t.Context(), `SELECT row_id, topic, code, attempts, state, coalesce(reason, '') FROM outbox_relay_failure ORDER BY row_id`)
	if err != nil {
		t.Fatal(err)
	}
	records, err := pgx.CollectRows(rows, pgx.RowToStructByPos[failureRecord])
	if err != nil {
		t.Fatal(err)
	}
	return records
}

// parkedStore is the operator's view of the fixture's failure table.
func (f *fixture) parkedStore(t *testing.T) *parked.Store {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), f.cfg.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	store, err := parked.Open(t.Context(), conn, pgtable.Name{Schema: "public", Table: "outbox_event"})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func (f *fixture) requeueAll(t *testing.T, want int64) {
	t.Helper()
	n, left, err := f.parkedStore(t).RequeueAll(t.Context(), parked.Filter{})
	if err != nil || n != want || left != 0 {
		t.Fatalf("requeued %d and left %d, %v; want %d", n, left, err, want)
	}
}

func (f *fixture) waitState(t *testing.T, state string, n int) {
	t.Helper()
	testenv.Eventually(t, fmt.Sprintf("%d rows are %s", n, state), func() bool {
		found := 0
		for _, r := range f.failures(t) {
			if r.State == state {
				found++
			}
		}
		return found == n
	})
}

// oversized is a sequence of which one event is above a limit of 20,000.
func oversized(topic string, n, which int, keys ...string) []testenv.Event {
	events := testenv.Sequence(topic, n, keys...)
	events[which].Payload = fmt.Sprintf(`{"seq": %d, "fill": "%s"}`, which+1, strings.Repeat("x", 30_000))
	return events
}

func TestBlockedKeyWaitsForTheOperatorAndKeepsItsOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1, "max.message.bytes=20000")
	// Row 11 is of key b.
	inserted := testenv.Insert(t, f.pool, oversized(topic, 60, 10, "a", "b", "c")...)
	r := f.start(t, quick, func(cfg *Config) { cfg.OnPoison = Block })
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	// All of a and c, and the three of b before row 11.
	consumer.WaitFor(t, 43)
	f.waitState(t, stateParked, 1)
	testenv.Eventually(t, "asleep beside a key that waits", func() bool { return r.Health().BellArmed })
	more := testenv.Insert(t, f.pool, testenv.Event{Topic: topic, Key: "b", Payload: testenv.Payload(61)},
		testenv.Event{Topic: topic, Key: "c", Payload: testenv.Payload(62)})
	consumer.WaitFor(t, 44)
	testenv.Eventually(t, "all are marked but the 18 of the blocked key", func() bool { return f.unpublished(t) == 18 })
	testenv.Eventually(t, "the waiting key is shown", func() bool { return r.Health().WaitingRows == 1 })

	setLimit(t, f.cfg.Brokers, topic, "100000")
	f.requeueAll(t, 1)
	consumer.WaitFor(t, 62)
	consumer.CheckOnce(t, append(inserted, more...)) // in order, the requeued row included
	f.waitDrained(t)
}

func TestDiscardedRowLetsItsKeyGoOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1, "max.message.bytes=20000")
	inserted := testenv.Insert(t, f.pool, oversized(topic, 10, 4, "a")...)
	f.start(t, quick, func(cfg *Config) { cfg.OnPoison = Block })
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	consumer.WaitFor(t, 4)
	f.waitState(t, stateParked, 1)
	id, err := parked.ParseID(inserted[4])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.parkedStore(t).Discard(t.Context(), []parked.ID{id}, "a test order"); err != nil {
		t.Fatal(err)
	}
	consumer.WaitFor(t, 9)
	consumer.CheckOnce(t, slices.Delete(slices.Clone(inserted), 4, 5))
	f.waitDrained(t)
}

func TestDeadLetterStandsInItsTopicWithItsCause(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1, "max.message.bytes=20000")
	dlq := testenv.Topic(t, f.cfg.Brokers, 1)
	inserted := testenv.Insert(t, f.pool, oversized(topic, 50, 10, "a", "b", "c")...)
	f.start(t, quick, func(cfg *Config) { cfg.OnPoison, cfg.DLQTopic = DeadLetter, dlq })
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	consumer.WaitFor(t, 49)
	consumer.CheckOnce(t, slices.Delete(slices.Clone(inserted), 10, 11))
	f.waitDrained(t)

	dead := testenv.Consume(t, f.cfg.Brokers, dlq).WaitFor(t, 1)[0]
	if dead.EventID != inserted[10] || string(dead.Key) != "b" {
		t.Errorf("event %s with key %s, want %s with b", dead.EventID, dead.Key, inserted[10])
	}
	for header, want := range map[string]string{
		"x-event-type": "order.confirmed", "x-original-topic": topic, "x-attempts": "1",
		"x-error": "max.message.bytes", "x-failed-at": "T", "x-created-at": "T",
	} {
		if got, _ := dead.Header(header); !strings.Contains(got, want) {
			t.Errorf("header %s is %q, want %q in it", header, got, want)
		}
	}
	records := f.failures(t)
	if len(records) != 1 || records[0].State != stateDeadLettered || records[0].Code != "MESSAGE_TOO_LARGE" || !strings.Contains(records[0].Cause, dlq) {
		t.Errorf("recorded %+v", records)
	}
}

// A dead-letter topic that is missing holds up the key, loses nothing, and is
// told of; a row that it refuses too is parked.
func TestDeadLetterTopicThatFails(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		dlq   func(*testing.T, *fixture) string
		state string
		cause string
	}{
		"missing": {func(*testing.T, *fixture) string { return "missing.dead.letters" }, stateWaiting, "cannot be written to"},
		"too small": {func(t *testing.T, f *fixture) string {
			return testenv.Topic(t, f.cfg.Brokers, 1, "max.message.bytes=10000")
		}, stateParked, "refuses it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			topic := testenv.Topic(t, f.cfg.Brokers, 1, "max.message.bytes=20000")
			testenv.Insert(t, f.pool, oversized(topic, 20, 5, "a", "b")...)
			dlq := tc.dlq(t, f)
			f.start(t, quick, func(cfg *Config) { cfg.OnPoison, cfg.DLQTopic = DeadLetter, dlq })
			consumer := testenv.Consume(t, f.cfg.Brokers, topic)
			consumer.WaitFor(t, 12)
			f.waitState(t, tc.state, 1)
			if r := f.failures(t)[0]; !strings.Contains(r.Cause, tc.cause) || r.Attempts > 1 {
				t.Errorf("recorded %+v", r)
			}
			if f.unpublished(t) == 0 {
				t.Error("the row is marked and stands nowhere")
			}
		})
	}
}

// Attempts, and that a row is parked, outlive a restart, and hold for every
// relay.
func TestParkedRowStaysParkedForOtherRelays(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1, "max.message.bytes=20000")
	testenv.Insert(t, f.pool, oversized(topic, 10, 4, "a")...)
	first := f.start(t, quick)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	consumer.WaitFor(t, 9)
	f.waitState(t, stateParked, 1)
	first.stop(t)
	setLimit(t, f.cfg.Brokers, topic, "100000") // it could be published now
	for range 2 {
		f.start(t, quick)
	}
	testenv.Insert(t, f.pool, testenv.Event{Topic: topic, Key: "a", Payload: testenv.Payload(11)})
	consumer.WaitFor(t, 10)
	testenv.Eventually(t, "all others are marked", func() bool { return f.unpublished(t) == 1 })
	f.waitState(t, stateParked, 1)
	f.requeueAll(t, 1)
	consumer.WaitFor(t, 11)
	f.waitDrained(t)
}

// A record under the same id from before the table was emptied says nothing
// about the row that has the id now.
func TestRecordOfAnotherEventUnderTheSameIDIsIgnored(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1, "max.message.bytes=20000")
	f.exec(t, `INSERT INTO outbox_relay_failure (row_id, event_id, topic, partition_key, kind, code, error, attempts, state)
		SELECT n, gen_random_uuid(), 'x', 'k', 'row', 'X', 'x', 1, 'parked' FROM generate_series(1, 10) n`)
	testenv.Insert(t, f.pool, oversized(topic, 10, 4, "k")...)
	f.start(t, quick)
	testenv.Consume(t, f.cfg.Brokers, topic).WaitFor(t, 9)
	testenv.Eventually(t, "the record is of the new event", func() bool {
		return f.failures(t)[4].Code == "MESSAGE_TOO_LARGE"
	})
}

// A hundred thousand parked rows at the head do not slow down the claims behind
// them, and the relay sleeps beside them.
func TestManyParkedRowsAreSteppedOver(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	f.exec(t, fill(100_000, "NULL"))
	f.exec(t, `INSERT INTO outbox_relay_failure (row_id, event_id, topic, partition_key, kind, code, error, attempts, state)
		SELECT id, event_id, topic, partition_key, 'row', 'MESSAGE_TOO_LARGE', 'x', 1, 'parked' FROM outbox_event`)
	r := f.start(t)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	for i := range 50 {
		testenv.Insert(t, f.pool, testenv.Event{Topic: topic, Key: "k", Payload: testenv.Payload(i + 1)})
	}
	consumer.WaitFor(t, 50)
	testenv.Eventually(t, "asleep", func() bool { return r.Health().BellArmed })
	testenv.Eventually(t, "the bound is above the parked rows", func() bool {
		testenv.Insert(t, f.pool, testenv.Event{Topic: topic, Key: "l"})
		return r.low.bound(r.waits.exclusions().version).id >= 100_000
	})
	testenv.Eventually(t, "all are counted", func() bool { return r.Health().ParkedRows == 100_000 })
}

func TestMissingTopicIsCreatedIfTheSettingsSaySo(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := "created-" + testenv.Topic(t, f.cfg.Brokers, 1)
	inserted := testenv.Insert(t, f.pool, testenv.Sequence(topic, 20, "a", "b")...)
	f.start(t, quick, func(cfg *Config) { cfg.CreateTopics, cfg.TopicPartitions = true, 2 })
	f.waitDrained(t)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	consumer.WaitFor(t, 20)
	consumer.CheckOnce(t, inserted)
	deleteTopic(t, f.cfg.Brokers, topic)
}

func TestTheLogStaysReadableWhenManyRowsFail(t *testing.T) {
	t.Parallel()
	var l refusalLog
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	said := 0
	for i := range 1000 {
		if say, _ := l.due("topic MESSAGE_TOO_LARGE parked", now.Add(time.Duration(i)*10*time.Millisecond)); say {
			said++
		}
	}
	if say, more := l.due("topic MESSAGE_TOO_LARGE parked", now.Add(2*time.Minute)); said != 1 || !say || more != 999 {
		t.Errorf("said %d times, then %v with %d more", said, say, more)
	}
	if say, _ := l.due("another", now); !say {
		t.Error("another cause was not told")
	}
}

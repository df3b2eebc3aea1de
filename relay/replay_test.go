package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// published inserts the events and marks them, the first at base and each a
// second after the one before it.
func (f *fixture) published(t *testing.T, base time.Time, events ...testenv.Event) (eventIDs []string) {
	t.Helper()
	eventIDs = testenv.Insert(t, f.pool, events...)
	_, err := f.pool.Exec(t.Context(), `UPDATE outbox_event o SET published_at = $1::timestamptz + (n.n - 1) * interval '1 second'
		FROM (SELECT id, row_number() OVER (ORDER BY id) AS n FROM outbox_event WHERE published_at IS NULL) n WHERE o.id = n.id`, base)
	if err != nil {
		t.Fatal(err)
	}
	return eventIDs
}

var day = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

func TestReplayPublishesTheChosenEventsAgainAsTheyWere(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 3)
	other := testenv.Topic(t, f.cfg.Brokers, 1)
	ids := f.published(t, day, testenv.Sequence(topic, 100, "a", "b", "")...)
	f.published(t, day, testenv.Sequence(other, 5, "a")...)
	testenv.Insert(t, f.pool, testenv.Event{Topic: topic, Key: "a"}) // unpublished
	if _, err := f.pool.Exec(t.Context(), `INSERT INTO outbox_relay_failure (row_id, event_id, topic, partition_key, kind, code, error, attempts, state)
		SELECT id, event_id, topic, partition_key, 'row', 'X', 'x', 1, CASE WHEN event_id = $1::text::uuid THEN 'discarded' ELSE 'dead_lettered' END
		FROM outbox_event WHERE event_id::text IN ($1, $2)`, ids[20], ids[21]); err != nil {
		t.Fatal(err)
	}
	before := snapshot(t, f)

	replay := Replay{Topic: topic, From: day.Add(10 * time.Second), To: day.Add(90 * time.Second)}
	plan, err := replay.Plan(t.Context(), f.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if plan.Events != 79 || plan.First.EventID != ids[10] || plan.Last.EventID != ids[89] || plan.First.Key != "b" || !plan.First.PublishedAt.Equal(replay.From) {
		t.Errorf("the plan is %+v", plan)
	}
	cfg := f.cfg
	cfg.BatchMax, cfg.BatchSize = 7, 7
	n, err := replay.Run(t.Context(), cfg, f.log.Logger)
	if err != nil || n != 79 {
		t.Fatalf("published %d, %v, want 79", n, err)
	}
	got := testenv.Consume(t, f.cfg.Brokers, topic).WaitFor(t, 79)
	want := slices.Delete(slices.Clone(ids[10:90]), 10, 11)
	seen := map[string]int{}
	for _, d := range got {
		if !slices.Contains(want, d.EventID) {
			t.Errorf("event %s was published too", d.EventID)
		}
		if key := string(d.Key); d.Key == nil || d.Seq <= seen[key] {
			t.Errorf("key %q: event %d came after %d", key, d.Seq, seen[key])
		}
		seen[string(d.Key)] = d.Seq
		at, _ := d.Header("x-replayed-at")
		if when, err := time.Parse(time.RFC3339, at); err != nil || !strings.HasSuffix(at, "Z") || time.Since(when).Abs() > time.Hour {
			t.Errorf("x-replayed-at is %q", at)
		}
		if string(d.Value) != testenv.Payload(d.Seq) {
			t.Errorf("event %d has the value %s", d.Seq, d.Value)
		}
		var names []string
		for _, h := range d.Headers {
			names = append(names, h.Key)
		}
		if !slices.Equal(names, []string{"x-event-id", "x-event-type", "x-created-at", "x-replayed-at"}) {
			t.Errorf("headers %q", names)
		}
	}
	if len(got) != 79 {
		t.Errorf("%d records, want 79", len(got))
	}
	if after := snapshot(t, f); after != before {
		t.Error("the replay changed the tables")
	}
}

// snapshot is a fingerprint of both tables, row versions included.
func snapshot(t *testing.T, f *fixture) (sum string) {
	t.Helper()
	err := f.pool.QueryRow(t.Context(), `SELECT md5(string_agg(o.xmin::text || o.xmax::text || o::text, '' ORDER BY id)) ||
		(SELECT coalesce(md5(string_agg(f.xmin::text || f::text, '' ORDER BY row_id)), '') FROM outbox_relay_failure f) FROM outbox_event o`).Scan(&sum)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

func TestReplayOfOneKeyAndFromAnID(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 3)
	f.published(t, day, testenv.Sequence(topic, 20, "a", "")...)
	empty := ""
	replay := Replay{Topic: topic, From: day, To: day.Add(time.Hour), Key: &empty, FromID: 11}
	n, err := replay.Run(t.Context(), f.cfg, f.log.Logger)
	if err != nil || n != 5 {
		t.Fatalf("published %d, %v, want 5", n, err)
	}
	for _, d := range testenv.Consume(t, f.cfg.Brokers, topic).WaitFor(t, 5) {
		if string(d.Key) != "" || d.Seq < 11 {
			t.Errorf("key %q, event %d", d.Key, d.Seq)
		}
	}
	replay.To = day
	if n, err := replay.Run(t.Context(), f.cfg, f.log.Logger); err != nil || n != 0 {
		t.Errorf("of no events: %d, %v", n, err)
	}
}

// An oversized row stops the replay; what was before it is published, and to go on
// behind it publishes the rest.
func TestReplayStopsAtARowThatIsRefusedAndSaysWhereToGoOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1, "max.message.bytes=2000")
	events := testenv.Sequence(topic, 30, "a")
	// Too large only with the header that the replay adds.
	events[12].Payload = fmt.Sprintf(`{"x": "%s", "seq": 13}`, strings.Repeat("x", 1770))
	e := event{eventID: uuid.NewString(), eventType: "order.confirmed", key: "a", payload: []byte(events[12].Payload), createdAt: time.Now()}
	if size := e.size(e.record()); size > 2000 || size < 1960 {
		t.Fatalf("the row takes %d bytes", size)
	}
	f.published(t, day, events...)
	replay := Replay{Topic: topic, From: day, To: day.Add(time.Hour)}
	n, err := replay.Run(t.Context(), f.cfg, f.log.Logger)
	stopped, ok := errors.AsType[*ReplayError](err)
	if !ok || n != 12 || stopped.Published != 12 || stopped.Next.ID != 13 || !errors.Is(err, kerr.MessageTooLarge) {
		t.Fatalf("got %d, %v; want it to stop at row 13", n, err)
	}
	replay.FromID = 14
	if n, err := replay.Run(t.Context(), f.cfg, f.log.Logger); err != nil || n != 17 {
		t.Errorf("behind it: %d, %v, want 17", n, err)
	}
	seq := 0
	for _, d := range testenv.Consume(t, f.cfg.Brokers, topic).WaitFor(t, 29) {
		if d.Seq <= seq {
			t.Errorf("event %d came after %d: what is behind the refused row was published with it", d.Seq, seq)
		}
		seq = d.Seq
	}
}

func TestReplayStopsWhenKafkaFailsAndGoesOnInOrder(t *testing.T) {
	t.Parallel()
	kafka := testenv.FakeKafka(t)
	f := newFixture(t)
	f.cfg.Brokers, f.cfg.BatchMax, f.cfg.BatchSize = kafka.ListenAddrs(), 10, 10
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	f.published(t, day, testenv.Sequence(topic, 30, "a")...)
	refuse(kafka, 1, kerr.TopicAuthorizationFailed) // the second request
	replay := Replay{Topic: topic, From: day, To: day.Add(time.Hour)}
	n, err := replay.Run(t.Context(), f.cfg, f.log.Logger)
	stopped, ok := errors.AsType[*ReplayError](err)
	if !ok || n != 10 || stopped.Next.ID != 11 || !errors.Is(err, kerr.TopicAuthorizationFailed) {
		t.Fatalf("got %d, %v; want it to stop at row 11", n, err)
	}
	replay.FromID = stopped.Next.ID
	if n, err := replay.Run(t.Context(), f.cfg, f.log.Logger); err != nil || n != 20 {
		t.Fatalf("to go on gave %d, %v, want 20", n, err)
	}
	for i, d := range testenv.Consume(t, f.cfg.Brokers, topic).WaitFor(t, 30) {
		if d.Seq != i+1 {
			t.Fatalf("record %d is event %d", i+1, d.Seq)
		}
	}
}

// refuse lets some produce requests pass and answers the next with the error.
func refuse(kafka *kfake.Cluster, pass int, answer *kerr.Error) {
	kafka.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		kafka.KeepControl()
		if pass > 0 {
			pass--
			return nil, nil, false
		}
		kafka.DropControl()
		request := req.(*kmsg.ProduceRequest)
		response := request.ResponseKind().(*kmsg.ProduceResponse)
		for _, topic := range request.Topics {
			answered := kmsg.NewProduceResponseTopic()
			answered.Topic, answered.TopicID = topic.Topic, topic.TopicID
			for _, partition := range topic.Partitions {
				p := kmsg.NewProduceResponseTopicPartition()
				p.Partition, p.ErrorCode = partition.Partition, answer.Code
				answered.Partitions = append(answered.Partitions, p)
			}
			response.Topics = append(response.Topics, answered)
		}
		return response, nil, true
	})
}

func TestReplayEndsWithItsContextAtARowToGoOnWith(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	f.published(t, day, testenv.Sequence(topic, 30, "a")...)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	type outcome struct {
		n   int64
		err error
	}
	done := make(chan outcome, 1)
	// One event an hour: after the first it waits.
	replay := Replay{Topic: topic, From: day, To: day.Add(time.Hour), Rate: 1.0 / 3600}
	go func() {
		n, err := replay.Run(ctx, f.cfg, f.log.Logger)
		done <- outcome{n, err}
	}()
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	consumer.WaitFor(t, 1)
	cancel()
	got := <-done
	stopped, ok := errors.AsType[*ReplayError](got.err)
	if !ok || got.n != 1 || stopped.Next.ID != 2 || !errors.Is(got.err, context.Canceled) {
		t.Errorf("got %+v, want it to stop behind the first", got)
	}
}

func TestReplayKeepsToItsRate(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	f.published(t, day, testenv.Sequence(topic, 40, "a")...)
	begun := time.Now()
	n, err := Replay{Topic: topic, From: day, To: day.Add(time.Hour), Rate: 20}.Run(t.Context(), f.cfg, f.log.Logger)
	if err != nil || n != 40 {
		t.Fatalf("published %d, %v", n, err)
	}
	// The last of 20 batches of 2 begins 1.9 s after the first.
	if took := time.Since(begun); took < 1900*time.Millisecond {
		t.Errorf("40 events at 20/s took %s", took)
	}
}

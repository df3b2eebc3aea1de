package relay

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// quick makes rows and topics that failed come back while a test waits.
func quick(cfg *Config) {
	cfg.RetryMin, cfg.RetryMax = 50*time.Millisecond, 200*time.Millisecond
}

func TestRecordCarriesTheEvent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1, "max.message.bytes=2000000")
	f.start(t)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	for _, tc := range []struct{ key, payload, want string }{
		{"", `{}`, `{}`},
		{"ключ-鍵-🔑", `{"a":1}`, `{"a": 1}`},
		{"big", `{"n":12345678901234567890123,"f":1.10}`, `{"f": 1.10, "n": 12345678901234567890123}`},
		{"null", `null`, `null`},
		{"text", `"a\u2028b\\n"`, "\"a\u2028b\\\\n\""},
		{"deep", strings.Repeat("[", 500) + strings.Repeat("]", 500), strings.Repeat("[", 500) + strings.Repeat("]", 500)},
		{"large", `"` + strings.Repeat("x", 1<<20) + `"`, `"` + strings.Repeat("x", 1<<20) + `"`},
	} {
		before := len(consumer.Deliveries())
		id := testenv.Insert(t, f.pool, testenv.Event{Topic: topic, Key: tc.key, Type: "order.placed", Payload: tc.payload})[0]
		got := consumer.WaitFor(t, before+1)[before]
		if string(got.Value) != tc.want {
			t.Errorf("key %q: value %.80s, want %.80s", tc.key, got.Value, tc.want)
		}
		if string(got.Key) != tc.key || got.Key == nil {
			t.Errorf("key %q: key %q, want %q", tc.key, got.Key, tc.key)
		}
		for name, want := range map[string]string{"x-event-id": id, "x-event-type": "order.placed"} {
			if value, _ := got.Header(name); value != want {
				t.Errorf("key %q: header %s is %q, want %q", tc.key, name, value, want)
			}
		}
		created, _ := got.Header("x-created-at")
		if at, err := time.Parse(time.RFC3339Nano, created); err != nil || at.Location() != time.UTC {
			t.Errorf("key %q: header x-created-at is %q, want RFC 3339 in UTC", tc.key, created)
		}
		if age := time.Since(got.Timestamp); age < -time.Minute || age > time.Hour {
			t.Errorf("key %q: record timestamp %s is not the time of the produce", tc.key, got.Timestamp)
		}
	}
}

func TestStrangeTimestampsStopNobody(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			topic := testenv.Topic(t, f.cfg.Brokers, 1)
			f.start(t, func(cfg *Config) { cfg.DatabaseURL += "&default_query_exec_mode=" + mode })
			consumer := testenv.Consume(t, f.cfg.Brokers, topic)
			stamps := []string{
				"infinity", "-infinity", "4713-01-01 00:00:00 BC", "0001-01-01 00:00:00 BC",
				"99999-01-01", "294276-12-31", "1970-01-01", "2999-01-01", "2024-02-29 12:00:00.123456+05:45",
			}
			for _, stamp := range stamps {
				f.exec(t, fmt.Sprintf(`INSERT INTO outbox_event
					(event_id, aggregate_type, aggregate_id, event_type, payload, topic, partition_key, created_at)
					VALUES (gen_random_uuid(), 'a', '1', 'a.b', '{}', '%s', 'k', '%s')`, topic, stamp))
			}
			got := consumer.WaitFor(t, len(stamps))
			for i, want := range []string{"", "", "", "", "", "", "1970-01-01T00:00:00Z", "2999-01-01T00:00:00Z", "2024-02-29T06:15:00.123456Z"} {
				if value, _ := got[i].Header("x-created-at"); value != want {
					t.Errorf("created_at %s: header %q, want %q", stamps[i], value, want)
				}
			}
			f.waitDrained(t)
		})
	}
}

func TestOversizedRowAmongGoodOnes(t *testing.T) {
	t.Parallel()
	for name, keys := range map[string][]string{
		"of the same key": {"k"},
		"of other keys":   {"k", "l", "m"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			topic := testenv.Topic(t, f.cfg.Brokers, 1, "max.message.bytes=20000")
			events := testenv.Sequence(topic, 50, keys...)
			events[9].Payload = `{"seq": 10, "fill": "` + strings.Repeat("x", 30_000) + `"}`
			inserted := testenv.Insert(t, f.pool, events...)
			f.start(t, quick)
			consumer := testenv.Consume(t, f.cfg.Brokers, topic)
			consumer.WaitFor(t, 49)
			testenv.Eventually(t, "the 49 are marked", func() bool { return f.unpublished(t) == 1 })
			consumer.CheckOnce(t, slices.Delete(slices.Clone(inserted), 9, 10))
			if n := len(f.log.Entries("row cannot be published, set aside: its key goes on without it")); n != 1 {
				t.Errorf("%d lines about the row, want 1", n)
			}

			setLimit(t, f.cfg.Brokers, topic, "100000")
			f.requeueAll(t, 1)
			consumer.WaitFor(t, 50)
			f.waitDrained(t)
			if records := f.failures(t); len(records) > 0 {
				t.Errorf("the record of a row that was published is left: %v", records)
			}
		})
	}
}

// Each record is a batch of its own here. A broker takes a batch for a repeat of
// an earlier one by its producer id and sequence numbers, and does not store it:
// whatever the relay does when a limit changes, it must not number anew under
// the same id.
func TestRaisedLimitLosesNoSingleRow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1, "max.message.bytes=20000")
	f.start(t, quick)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	inserted := testenv.Insert(t, f.pool, testenv.Event{Topic: topic, Key: "k", Payload: testenv.Payload(1)})
	consumer.WaitFor(t, 1)
	inserted = append(inserted, testenv.Insert(t, f.pool, testenv.Event{
		Topic: topic, Key: "k", Payload: `{"seq": 2, "fill": "` + strings.Repeat("x", 30_000) + `"}`,
	})...)
	f.log.WaitFor(t, "row cannot be published, set aside: its key goes on without it")
	setLimit(t, f.cfg.Brokers, topic, "100000")
	f.requeueAll(t, 1)
	f.waitDrained(t)
	consumer.WaitFor(t, 2)
	consumer.CheckOnce(t, inserted)
}

// The client counts a record's size a little higher than the broker. Between
// the two it would refuse a record that the relay let through, and let those
// behind it pass.
func TestRecordsAtTheLimitKeepTheOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const limit = 20_000
	topic := testenv.Topic(t, f.cfg.Brokers, 1, "max.message.bytes=20000")
	probe := event{topic: topic, key: "k-00", eventType: "order.confirmed", eventID: strings.Repeat("x", 36)}
	probe.createdAt = time.Date(2026, 1, 1, 0, 0, 0, 123456000, time.UTC)
	overhead := probe.size(probe.record()) - 5 + 4 // as the broker counts, and two lengths of three bytes for one
	var events []testenv.Event
	for i, over := 0, -8; over <= 8; i, over = i+1, over+1 {
		key := fmt.Sprintf("k-%02d", i)
		payload := `{"seq": 2, "fill": ""}`
		fill := strings.Repeat("x", limit-overhead-len(payload)+over)
		events = append(events,
			testenv.Event{Topic: topic, Key: key, Payload: testenv.Payload(1)},
			testenv.Event{Topic: topic, Key: key, Payload: `{"seq": 2, "fill": "` + fill + `"}`},
			testenv.Event{Topic: topic, Key: key, Payload: testenv.Payload(3)})
	}
	testenv.Insert(t, f.pool, events...)
	f.start(t, quick)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	testenv.Eventually(t, "what fits has arrived, the rest is set aside", func() bool {
		aside := len(f.failures(t))
		return f.unpublished(t) == aside && aside > 0 && aside < len(events)/3
	})
	seen := map[string]bool{}
	for _, d := range consumer.Deliveries() {
		if seen[d.EventID] {
			t.Errorf("key %s: event %d was repeated", d.Key, d.Seq)
		}
		seen[d.EventID] = true
	}
	if r := consumer.Report(nil); len(r.Disorder) > 0 {
		t.Errorf("out of order: %q", r.Disorder)
	}
}

func TestRecreatedTopicIsPublishedToAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 3)
	f.start(t, quick)
	testenv.Insert(t, f.pool, testenv.Sequence(topic, 30, "a", "b", "c")...)
	f.waitDrained(t)
	deleteTopic(t, f.cfg.Brokers, topic)
	createTopic(t, f.cfg.Brokers, topic)
	inserted := testenv.Insert(t, f.pool, testenv.Sequence(topic, 30, "a", "b", "c")...)
	f.waitDrained(t)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	consumer.WaitFor(t, 30)
	consumer.CheckOnce(t, inserted)
}

// The limit is one for a batch: rows that fit alone must not be refused
// together.
func TestBatchesFitTheTopicsLimit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1, "max.message.bytes=20000")
	events := testenv.Sequence(topic, 100, "k")
	for i := range events {
		events[i].Payload = fmt.Sprintf(`{"seq": %d, "fill": "%s"}`, i+1, strings.Repeat("x", 5_000))
	}
	inserted := testenv.Insert(t, f.pool, events...)
	f.start(t)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	consumer.WaitFor(t, 100)
	consumer.CheckOnce(t, inserted)
	if lines := f.log.Entries("row refused by Kafka, its key waits with it"); len(lines) > 0 {
		t.Errorf("rows were blamed: %v", lines)
	}
}

// The topic's limit is lowered after the relay has learned it: the broker
// refuses whole batches, and only the rows that are too large may be blamed.
func TestLoweredLimitBlamesOnlyRowsThatDoNotFit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	f.start(t, quick)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	inserted := testenv.Insert(t, f.pool, testenv.Sequence(topic, 10, "k")...)
	consumer.WaitFor(t, 10)
	setLimit(t, f.cfg.Brokers, topic, "3000")

	events := testenv.Sequence(topic, 60, "a", "b")
	for i := range events {
		events[i].Payload = fmt.Sprintf(`{"seq": %d, "fill": "%s"}`, i+1, strings.Repeat("x", 1_000))
	}
	events[20].Payload = `{"seq": 21, "fill": "` + strings.Repeat("x", 5_000) + `"}`
	more := testenv.Insert(t, f.pool, events...)
	consumer.WaitFor(t, 69)
	consumer.CheckOnce(t, append(inserted, slices.Delete(slices.Clone(more), 20, 21)...))
	testenv.Eventually(t, "all but one are marked", func() bool { return f.unpublished(t) == 1 })
}

func TestMissingTopicWaitsAndOthersFlow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	missing := "missing-" + topic
	waiting := testenv.Insert(t, f.pool, testenv.Sequence(missing, 100, "a", "b")...)
	r := f.start(t, quick)
	inserted := testenv.Insert(t, f.pool, testenv.Sequence(topic, 300, "a", "b")...)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	consumer.WaitFor(t, 300)
	consumer.CheckOnce(t, inserted)
	testenv.Eventually(t, "the topic is shown as waiting", func() bool {
		topics := r.Health().WaitingTopics
		return len(topics) == 1 && topics[0].Topic == missing && topics[0].Attempts > 2
	})
	if !r.Health().Ready() {
		t.Error("a missing topic makes the relay unready: all others flow")
	}

	createTopic(t, f.cfg.Brokers, missing)
	late := testenv.Consume(t, f.cfg.Brokers, missing)
	late.WaitFor(t, 100)
	late.CheckOnce(t, waiting)
	f.waitDrained(t)
	testenv.Eventually(t, "nothing waits", func() bool { return len(r.Health().WaitingTopics) == 0 })
	for _, line := range []string{
		"topic cannot be published to, its rows wait and all others flow",
		"topic can be published to again",
	} {
		if n := len(f.log.Entries(line)); n != 1 {
			t.Errorf("%d lines %q, want 1", n, line)
		}
	}
}

func TestInvalidTopicNamesStopNobody(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	invalid := []string{"", ".", "..", "with space", "ünicode", strings.Repeat("x", 250), "a/b", "a\nb"}
	for _, name := range invalid {
		testenv.Insert(t, f.pool, testenv.Event{Topic: name, Key: "k"})
	}
	inserted := testenv.Insert(t, f.pool, testenv.Sequence(topic, 100, "k")...)
	r := f.start(t, quick)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	consumer.WaitFor(t, 100)
	consumer.CheckOnce(t, inserted)
	testenv.Eventually(t, "each is shown as waiting", func() bool { return len(r.Health().WaitingTopics) == len(invalid) })
	testenv.Eventually(t, "none of them is marked", func() bool { return f.unpublished(t) == len(invalid) })
}

func admin(t *testing.T, brokers []string) *kadm.Client {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return kadm.NewClient(client)
}

func setLimit(t *testing.T, brokers []string, topic, bytes string) {
	t.Helper()
	client := admin(t, brokers)
	answers, err := client.AlterTopicConfigs(t.Context(),
		[]kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &bytes}}, topic)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range answers {
		if a.Err != nil {
			t.Fatal(a.Err)
		}
	}
	// A broker accepts the change before it goes by it: a row that is too large
	// for the new limit would still get in.
	testenv.Eventually(t, "the broker knows of the limit", func() bool {
		configs, err := client.DescribeTopicConfigs(t.Context(), topic)
		if err != nil || len(configs) == 0 {
			return false
		}
		n, ok := maxMessageBytes(configs[0])
		return ok && strconv.Itoa(n) == bytes
	})
}

func deleteTopic(t *testing.T, brokers []string, topic string) {
	t.Helper()
	client := admin(t, brokers)
	if _, err := client.DeleteTopic(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the topic is gone", func() bool {
		topics, err := client.ListTopics(t.Context(), topic)
		return err == nil && topics[topic].Err != nil
	})
}

func createTopic(t *testing.T, brokers []string, topic string) {
	t.Helper()
	if _, err := admin(t, brokers).CreateTopic(t.Context(), 1, -1, nil, topic); err != nil {
		t.Fatal(err)
	}
}

package relay

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

func TestMetricsTellWhatHappened(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	r := f.start(t, quick)
	testenv.Insert(t, f.pool, testenv.Sequence(topic, 120, "a", "b")...)
	testenv.Insert(t, f.pool, testenv.Event{Topic: "missing.topic.name", Key: "c"})
	testenv.Eventually(t, "all but one are marked", func() bool { return f.unpublished(t) == 1 })
	testenv.Eventually(t, "120 events are counted", func() bool {
		return r.metric(t, "outbox_relay_events_published_total", topic) == 120
	})
	for _, name := range []string{
		"outbox_relay_batches_total", "outbox_relay_batch_size", "outbox_relay_claim_seconds",
		"outbox_relay_publish_seconds", "outbox_relay_mark_seconds", "outbox_relay_event_latency_seconds",
		"outbox_relay_wakes_total", "outbox_relay_bell_armed", "outbox_relay_listener_up", "outbox_relay_sentinel",
	} {
		// Each try of the missing topic may take the relay off the bell.
		testenv.Eventually(t, name+" is above zero", func() bool { return r.metric(t, name) != 0 })
	}
	if r.metric(t, "outbox_relay_publish_errors_total", "topic", "UNKNOWN_TOPIC_OR_PARTITION") == 0 {
		t.Error("the missing topic is not counted")
	}
}

func TestLagIsSampled(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	testenv.Insert(t, f.pool, testenv.Sequence("missing.topic.name", 30, "c")...)
	f.exec(t, `UPDATE outbox_event SET created_at = now() - interval '1 hour'`)
	r := f.start(t)
	testenv.Eventually(t, "the backlog is shown", func() bool {
		return r.metric(t, "outbox_relay_unpublished") == 30 && r.metric(t, "outbox_relay_oldest_unpublished_seconds") >= 3600
	})
}

func TestABacklogIsEstimatedNotCounted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(t, fill(12_000, "NULL"))
	r, err := New(f.cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.pool = f.pool
	s, err := r.takeSample(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.unpublished != 12_000 {
		t.Errorf("estimate %d, want the span of 12000 ids", s.unpublished)
	}
}

// A failed sample must not read as no lag.
func TestAFailedSampleIsLeftOut(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(t, `DROP TABLE outbox_event`)
	r := f.start(t)
	testenv.Eventually(t, "the fault is shown", func() bool { return r.Health().DatabaseError != "" })
	families, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if name := family.GetName(); name == "outbox_relay_unpublished" || name == "outbox_relay_oldest_unpublished_seconds" {
			t.Errorf("%s is exported without a sample", name)
		}
	}
}

// Ticks go on while a relay sleeps, and wake it only for a row: one that came
// without a sound.
func TestTicksWakeASleepingRelayOnlyForRows(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	r := f.start(t, func(cfg *Config) { cfg.PollInterval = 20 * time.Millisecond })
	testenv.Eventually(t, "asleep", func() bool { return r.Health().BellArmed })
	wakes := func() float64 {
		return r.metric(t, "outbox_relay_wakes_total", "tick") + r.metric(t, "outbox_relay_wakes_total", "poll")
	}
	f.exec(t, `ALTER TABLE outbox_event DISABLE TRIGGER outbox_relay_notify`)
	before := wakes()
	for i := range 5 {
		testenv.Insert(t, f.pool, testenv.Event{Topic: topic, Key: "k", Payload: testenv.Payload(i + 1)})
		f.waitDrained(t)
		testenv.Eventually(t, "asleep again", func() bool { return r.Health().BellArmed })
	}
	if got := wakes() - before; got < 5 || got > 25 {
		t.Errorf("%v wakes for 5 rows", got)
	}
}

// metric sums the samples of a family that carry all the label values. A
// histogram counts with its observations.
func (r *running) metric(t *testing.T, name string, labels ...string) (sum float64) {
	t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			if hasLabels(m, labels) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

func hasLabels(m *dto.Metric, values []string) bool {
	for _, want := range values {
		if !slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetValue() == want }) {
			return false
		}
	}
	return true
}

func TestLogsCarryNoPayloadAndNoSecret(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1, "max.message.bytes=2000")
	r := f.start(t, quick, func(cfg *Config) { cfg.ListenURL = cfg.DatabaseURL })
	const secret = "4111-1111-1111-1111"
	testenv.Insert(t, f.pool, testenv.Event{Topic: topic, Key: "k", Payload: `"` + secret + strings.Repeat("x", 3000) + `"`})
	testenv.Insert(t, f.pool, testenv.Event{Topic: "missing.topic.name", Key: "k", Payload: `"` + secret + `"`})
	f.log.WaitFor(t, "row cannot be published, set aside: its key goes on without it")
	f.log.WaitFor(t, "topic cannot be published to, its rows wait and all others flow")
	f.terminate(t)
	r.stop(t)
	for _, entry := range f.log.Entries() {
		for key, value := range entry.Attrs {
			if s := fmt.Sprint(value); strings.Contains(s, secret) || strings.Contains(s, f.cfg.DatabaseURL) {
				t.Errorf("log line %q, %s: %s", entry.Message, key, s)
			}
		}
	}
}

package relay

import (
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

func produceFault(err *kerr.Error, count int) kfake.Fault {
	return kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: err, Count: count}
}

// A cluster that answers and takes no records: no transaction stays open, no
// row is blamed, and all is delivered once it takes them again.
func TestOutageHoldsNothingAndLosesNothing(t *testing.T) {
	t.Parallel()
	for _, code := range []*kerr.Error{kerr.NotEnoughReplicas, kerr.NotLeaderForPartition, kerr.KafkaStorageError} {
		t.Run(code.Message, func(t *testing.T) {
			t.Parallel()
			f, cluster := newFixtureWithKafka(t)
			f.cfg.PublishTimeout = 2 * time.Second
			topic := testenv.Topic(t, f.cfg.Brokers, 1)
			consumer := testenv.Consume(t, f.cfg.Brokers, topic)
			fault := cluster.Fault(produceFault(code, -1))
			r := f.start(t)
			inserted := testenv.Insert(t, f.pool, testenv.Sequence(topic, 200, "a", "b", "c")...)
			testenv.Eventually(t, "the outage is shown", func() bool {
				h := r.Health()
				return h.DatabaseUp && !h.BrokerUp && h.BrokerError != "" && !h.Ready()
			})
			var worst float64
			testenv.Eventually(t, "several attempts", func() bool {
				var oldest float64
				err := f.pool.QueryRow(t.Context(), `SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8
					FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'outbox-relay'`).Scan(&oldest)
				if err != nil {
					t.Fatal(err)
				}
				worst = max(worst, oldest)
				return fault.Hits() > 20
			})
			if limit := f.cfg.PublishTimeout + time.Second; worst > limit.Seconds() {
				t.Errorf("a transaction was open for %.2fs, the limit is %s", worst, limit)
			}
			fault.Remove()
			testenv.Eventually(t, "every event arrived", func() bool { return len(consumer.Report(inserted).Lost) == 0 })
			f.waitDrained(t)
			consumer.CheckAtLeastOnce(t, inserted)
			testenv.Eventually(t, "the end is shown", func() bool { return r.Health().Ready() })
			if topics, rows := r.waits.snapshot(); len(topics)+rows > 0 {
				t.Errorf("blamed for an outage: topics %v, %d rows", topics, rows)
			}
			if n := len(f.log.Entries("server unavailable, nothing is lost and it is tried until it is back")); n != 1 {
				t.Errorf("%d lines about the outage, want 1", n)
			}
		})
	}
}

// The broker stores the batch and answers with a timeout: the client asks
// again, and nothing is repeated.
func TestTimeoutAfterTheAppendRepeatsNothing(t *testing.T) {
	t.Parallel()
	f, cluster := newFixtureWithKafka(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	cluster.Fault(produceFault(kerr.RequestTimedOut, 1))
	f.start(t)
	inserted := testenv.Insert(t, f.pool, testenv.Sequence(topic, 100, "a", "b")...)
	consumer.WaitFor(t, 100)
	f.waitDrained(t)
	consumer.CheckOnce(t, inserted)
}

// One topic takes no records and the cluster is fine otherwise: its rows wait,
// all others flow, and nothing of them is repeated.
func TestTopicOutageStopsAndRepeatsNoOther(t *testing.T) {
	t.Parallel()
	f, cluster := newFixtureWithKafka(t)
	f.cfg.PublishTimeout = 2 * time.Second
	good, bad := testenv.Topic(t, f.cfg.Brokers, 1), testenv.Topic(t, f.cfg.Brokers, 1)
	consumer := testenv.Consume(t, f.cfg.Brokers, good)
	fault := produceFault(kerr.NotEnoughReplicas, -1)
	fault.Topic = bad
	handle := cluster.Fault(fault)
	first, second := f.start(t, quick), f.start(t, quick)
	waiting := testenv.Insert(t, f.pool, testenv.Sequence(bad, 20, "a", "b")...)
	var inserted []string
	for i := range 100 {
		inserted = append(inserted, testenv.Insert(t, f.pool, testenv.Event{
			Topic: good, Key: "a", Payload: testenv.Payload(i + 1),
		})...)
	}
	consumer.WaitFor(t, 100)
	testenv.Eventually(t, "the good ones are marked", func() bool { return f.unpublished(t) == len(waiting) })
	consumer.CheckOnce(t, inserted)
	if len(first.Health().WaitingTopics)+len(second.Health().WaitingTopics) == 0 {
		t.Error("neither relay shows the topic as waiting")
	}
	handle.Remove()
	f.waitDrained(t)
	late := testenv.Consume(t, f.cfg.Brokers, bad)
	late.WaitFor(t, len(waiting))
	late.CheckAtLeastOnce(t, waiting)
}

// Writers need not notify a relay that can do nothing about it.
func TestBellIsFreeDuringAnOutage(t *testing.T) {
	t.Parallel()
	f, cluster := newFixtureWithKafka(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	f.start(t)
	testenv.Eventually(t, "the relay sleeps", func() bool { return f.armed(t) })
	cluster.Close()
	testenv.Insert(t, f.pool, testenv.Sequence(topic, 5, "a")...)
	testenv.Eventually(t, "the bell is free", func() bool { return !f.armed(t) })
}

func TestOutageIsNoticedWhileThereIsNothingToPublish(t *testing.T) {
	t.Parallel()
	f, cluster := newFixtureWithKafka(t)
	r := f.start(t)
	testenv.Eventually(t, "ready", func() bool { return r.Health().Ready() })
	cluster.Close()
	testenv.Eventually(t, "the outage is shown", func() bool { return !r.Health().BrokerUp })
}

// Another relay has published what failed here: there is nothing left by which
// this one could show that Kafka works, and it must not stay unready for that.
func TestRelayIsReadyAgainWithNothingLeftToPublish(t *testing.T) {
	t.Parallel()
	f, cluster := newFixtureWithKafka(t)
	f.cfg.PublishTimeout = 2 * time.Second
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	fault := cluster.Fault(produceFault(kerr.NotEnoughReplicas, -1))
	r := f.start(t)
	testenv.Insert(t, f.pool, testenv.Sequence(topic, 5, "a")...)
	testenv.Eventually(t, "the outage is shown", func() bool { return r.Health().BrokerError != "" && !r.Health().BrokerUp })
	testenv.Eventually(t, "somebody else marks the rows", func() bool {
		_, err := f.pool.Exec(t.Context(), `UPDATE outbox_event SET published_at = now()`)
		return err == nil
	})
	testenv.Eventually(t, "ready again", func() bool { return r.Health().Ready() })
	fault.Remove()
}

// The client never gives up a record that was answered with a timeout, since
// the broker may have it. That must not hold up the worker.
func TestTopicInDoubtStopsNoOther(t *testing.T) {
	t.Parallel()
	f, cluster := newFixtureWithKafka(t)
	f.cfg.PublishTimeout = 2 * time.Second
	good, bad := testenv.Topic(t, f.cfg.Brokers, 1), testenv.Topic(t, f.cfg.Brokers, 1)
	consumer := testenv.Consume(t, f.cfg.Brokers, good)
	fault := produceFault(kerr.RequestTimedOut, -1)
	fault.Topic = bad
	handle := cluster.Fault(fault)
	f.start(t, quick)
	waiting := testenv.Insert(t, f.pool, testenv.Sequence(bad, 5, "a")...)
	var inserted []string
	for i := range 20 {
		inserted = append(inserted, testenv.Insert(t, f.pool, testenv.Event{
			Topic: good, Key: "a", Payload: testenv.Payload(i + 1),
		})...)
		consumer.WaitFor(t, i+1)
		testenv.Eventually(t, "it is marked", func() bool { return f.unpublished(t) <= len(waiting) })
	}
	consumer.CheckOnce(t, inserted)
	handle.Remove()
	f.waitDrained(t)
}

// After an outage some publishes that began before it ended still fail. They
// must not be reported as outages of their own.
func TestPublishFromBeforeTheRecoveryIsNoOutage(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r, err := New(f.cfg, WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	c, err := newCluster(&f.cfg, r.kafka, r.waits)
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { c.run(t.Context()) })
	t.Cleanup(func() { running.Wait(); c.close() })
	testenv.Eventually(t, "the gate is open", c.isOpen)

	began := time.Now()
	down := func() bool { up, _ := r.kafka.state(); return !up && c.isOpen() }
	c.publishFailed(began, errNotSent)
	testenv.Eventually(t, "the outage is told and the gate open for a trial", down)
	if c.publishWorked(t.Context(), began) || !down() {
		t.Error("what was acknowledged before the failure has ended the outage")
	}
	c.publishWorked(t.Context(), time.Now())
	stayUp := func(recovery string) {
		c.publishFailed(began, errNotSent)
		if up, reason := r.kafka.state(); !up || !c.isOpen() {
			t.Errorf("a publish from before the recovery, which %s told, shut the gate: %s", recovery, reason)
		}
	}
	stayUp("a publish")

	began = time.Now()
	c.unreachable(t.Context(), errNotSent)
	testenv.Eventually(t, "the gate is open, and a ping alone proves no recovery", down)
	c.nothingToPublish(t.Context())
	stayUp("a claim without rows")

	c.publishFailed(time.Now(), errNotSent)
	testenv.Eventually(t, "the next outage is told", down)
}

// A relay at rest publishes nothing that could prove the recovery.
func TestOutageFoundAtRestIsOverWithoutAnEvent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	sentinel := f.start(t)
	testenv.Eventually(t, "asleep", func() bool { return sentinel.Health().BellArmed })
	helper := f.start(t)
	for i, r := range []*running{sentinel, helper} {
		r.cluster.unreachable(t.Context(), errNotSent)
		testenv.Eventually(t, "the outage is told, and its end", func() bool {
			return len(f.log.Entries("server unavailable, nothing is lost and it is tried until it is back")) == i+1 &&
				len(f.log.Entries("server available again")) == i+1
		})
	}
}

// The broker has forgotten the producer, or what it sent last: its id expired, or
// a replica that knew less has become the leader.
func TestForgottenProducerGoesOn(t *testing.T) {
	t.Parallel()
	for _, code := range []*kerr.Error{kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID, kerr.InvalidProducerEpoch} {
		t.Run(code.Message, func(t *testing.T) {
			t.Parallel()
			f, cluster := newFixtureWithKafka(t)
			topic := testenv.Topic(t, f.cfg.Brokers, 1)
			consumer := testenv.Consume(t, f.cfg.Brokers, topic)
			r := f.start(t)
			inserted := testenv.Insert(t, f.pool, testenv.Sequence(topic, 10, "a", "b")...)
			consumer.WaitFor(t, 10) // it is known to the broker
			f.waitDrained(t)
			fault := cluster.Fault(produceFault(code, 2))
			more := testenv.Sequence(topic, 50, "a", "b")[10:]
			inserted = append(inserted, testenv.Insert(t, f.pool, more...)...)
			testenv.Eventually(t, "every event arrived", func() bool { return len(consumer.Report(inserted).Lost) == 0 })
			f.waitDrained(t)
			consumer.CheckAtLeastOnce(t, inserted)
			if fault.Hits() == 0 {
				t.Error("the broker refused nothing")
			}
			if topics, rows := r.waits.snapshot(); len(topics)+rows > 0 {
				t.Errorf("blamed for it: topics %v, %d rows", topics, rows)
			}
		})
	}
}

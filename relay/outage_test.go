package relay

import (
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
			cluster := testenv.FakeKafka(t)
			f := newFixture(t)
			f.cfg.Brokers = cluster.ListenAddrs()
			f.cfg.PublishTimeout = time.Second
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
	cluster := testenv.FakeKafka(t)
	f := newFixture(t)
	f.cfg.Brokers = cluster.ListenAddrs()
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	cluster.Fault(produceFault(kerr.RequestTimedOut, 1))
	f.start(t)
	inserted := testenv.Insert(t, f.pool, testenv.Sequence(topic, 100, "a", "b")...)
	consumer.WaitFor(t, 100)
	f.waitDrained(t)
	consumer.CheckOnce(t, inserted)
}

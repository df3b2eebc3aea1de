package relay

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// Whatever a broker answers to a produce, once or for a while: nothing is lost,
// keys stay in order, and only errors that are a row's own fault are held
// against a row.
func TestEveryAnswerOfABrokerIsSurvived(t *testing.T) {
	t.Parallel()
	for kind, list := range outcomes {
		for _, code := range list {
			if code == kerr.DuplicateSequenceNumber {
				continue // says that the batch is stored, which the client believes, and here it is not
			}
			t.Run(string(kind)+" "+code.Message, func(t *testing.T) {
				t.Parallel()
				f, cluster := newFixtureWithKafka(t)
				f.cfg.PublishTimeout = 2 * time.Second
				f.cfg.RetryMin, f.cfg.RetryMax = 10*time.Millisecond, 100*time.Millisecond
				f.cfg.MaxAttempts = 2
				topic := testenv.Topic(t, f.cfg.Brokers, 2)
				consumer := testenv.Consume(t, f.cfg.Brokers, topic)
				fault := cluster.Fault(produceFault(code, answers(kind)))
				f.start(t)
				inserted := testenv.Insert(t, f.pool, testenv.Sequence(topic, 40, "a", "b", "c")...)
				if kind == kindRow {
					f.waitState(t, stateParked, len(inserted))
					fault.Remove()
					for _, r := range f.failures(t) {
						if r.Code != code.Message || r.Attempts != 2 {
							t.Errorf("recorded %+v", r)
						}
					}
					f.requeueAll(t, int64(len(inserted)))
				}
				testenv.Eventually(t, "every event arrived", func() bool { return len(consumer.Report(inserted).Lost) == 0 })
				f.waitDrained(t)
				if kind != kindRow { // whose keys were let go on without them
					consumer.CheckAtLeastOnce(t, inserted)
				}
				if records := f.failures(t); len(records) > 0 {
					t.Errorf("held against rows: %+v", records)
				}
			})
		}
	}
}

// answers is how often the broker gives the answer before it takes records: a
// refused row is set aside only if it is refused again and again.
func answers(kind failureKind) int {
	if kind == kindRow {
		return -1
	}
	return 5
}

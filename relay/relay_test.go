package relay

import (
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

func TestCommittedRowsArriveOnceAndInOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 3)
	before := testenv.Insert(t, f.pool, testenv.Sequence(topic, 100, "a", "b", "c")...)
	f.start(t)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	consumer.WaitFor(t, 100)

	after := before
	for i := range 200 {
		after = append(after, testenv.Insert(t, f.pool, testenv.Event{
			Topic: topic, Key: "a", Payload: testenv.Payload(1000 + i),
		})...)
	}
	consumer.WaitFor(t, 300)
	consumer.CheckOnce(t, after)
	f.waitDrained(t)
}

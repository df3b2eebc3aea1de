package relay

import (
	"context"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// deadLetter is what a record in the dead-letter topic tells beyond its event.
type deadLetter struct {
	topic    string
	message  string
	attempts int
	failedAt time.Time
}

func (d *deadLetter) headers() []kgo.RecordHeader {
	return []kgo.RecordHeader{
		{Key: "x-original-topic", Value: []byte(d.topic)},
		{Key: "x-error", Value: []byte(d.message)},
		{Key: "x-attempts", Value: strconv.AppendInt(nil, int64(d.attempts), 10)},
		{Key: "x-failed-at", Value: d.failedAt.UTC().AppendFormat(nil, time.RFC3339Nano)},
	}
}

// deadLetters publishes rows that have used up their attempts to the
// dead-letter topic, and sets what became of each. One that Kafka does not take
// there either is parked if that is the row's fault, and otherwise waits
// without an attempt being counted.
func (w *worker) deadLetters(ctx context.Context, refusals []*refusal) {
	if len(refusals) == 0 {
		return
	}
	events := make([]event, len(refusals))
	for i, r := range refusals {
		events[i] = r.event
		events[i].topic = w.r.cfg.DLQTopic
		events[i].dead = &deadLetter{
			topic: r.event.topic, message: r.message, attempts: r.attempts, failedAt: time.Now(),
		}
	}
	d := newDelivery(events, w.r.cfg.Order)
	if !w.publisher.publish(ctx, d) {
		finish := w.publisher.detach()
		w.r.rounds.Go(func() {
			// Whatever arrives late is published there once more.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.r.cfg.PublishTimeout)
			defer cancel()
			finish(ctx)
		})
	}
	for i, r := range refusals {
		err := d.err(i)
		switch kind, _ := classify(err); {
		case err == nil:
			r.state, r.reason = stateDeadLettered, "published to "+w.r.cfg.DLQTopic
		case kind == kindRow:
			r.state, r.reason = stateParked, "the dead-letter topic refuses it: "+oneLine(err)
		default:
			r.state, r.attempts = stateWaiting, max(0, r.attempts-1)
			r.reason = "the dead-letter topic cannot be written to: " + oneLine(err)
			if kind == kindTopic {
				w.r.waits.topicFailed(ctx, w.r.cfg.DLQTopic, err)
			}
		}
	}
}

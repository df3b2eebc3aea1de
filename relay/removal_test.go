package relay

import (
	"strings"
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// What the README says to remove old rows with takes published ones only, also
// while they are being published.
func TestRemovalOfOldRowsTouchesNothingElse(t *testing.T) {
	t.Parallel()
	remove := testenv.RemovalStatement(t, "0")

	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 2, "max.message.bytes=20000")
	f.start(t, quick)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	testenv.Insert(t, f.pool, testenv.Event{Topic: topic, Key: "large", Payload: `{"seq": 1, "fill": "` + strings.Repeat("x", 30_000) + `"}`})
	f.waitState(t, stateParked, 1)
	var inserted []string
	events := testenv.Sequence(topic, 600, "a", "b", "c")
	for ; len(events) > 0; events = events[20:] {
		inserted = append(inserted, testenv.Insert(t, f.pool, events[:20]...)...)
		f.exec(t, remove)
	}
	consumer.WaitFor(t, len(inserted))
	testenv.Eventually(t, "only the parked row is left", func() bool {
		f.exec(t, remove)
		var left, unpublished int
		err := f.pool.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE published_at IS NULL) FROM outbox_event`).Scan(&left, &unpublished)
		return err == nil && left == 1 && unpublished == 1
	})
	consumer.CheckOnce(t, inserted)
	f.waitState(t, stateParked, 1)
}

package relay

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// waits knows what is left out of the claims for now, so that it neither stops
// nor slows the others: topics that Kafka does not take records for, and keys
// whose next row waits.
//
// Topics are this process's memory: another relay finds out for itself, and a
// restart tries them anew. Keys are read from the failure table, on which all
// relays agree.
type waits struct {
	min, max    time.Duration
	forgetAfter time.Duration // past the next try
	log         *slog.Logger

	mu      sync.Mutex
	topics  map[string]*wait
	keys    []waitingKey
	stale   bool // the failure table has changed
	version int64
	cached  exclusions
	expires time.Time // of cached; zero: at once
}

type wait struct {
	err      error
	attempts int
	next     time.Time
	onTrial  bool // rows are claimed again
}

func newWaits(cfg *Config, log *slog.Logger) *waits {
	return &waits{
		min: cfg.RetryMin, max: cfg.RetryMax, log: log,
		// Time enough for a few looks at every row.
		forgetAfter: max(cfg.RetryMax, 10*cfg.PollInterval),
		topics:      map[string]*wait{},
		stale:       true,
	}
}

// failed notes one more failure and when to try again.
func (w *waits) failed(x *wait, err error) {
	x.err = err
	x.attempts++
	x.onTrial = false
	x.next = time.Now().Add(w.pause(x.attempts))
	w.expires = time.Time{}
}

func (w *waits) topicFailed(ctx context.Context, topic string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x, known := w.topics[topic]
	if !known {
		x = &wait{}
		w.topics[topic] = x
	}
	w.failed(x, err)
	if !known {
		w.log.WarnContext(ctx, "topic cannot be published to, its rows wait and all others flow",
			"topic", topic, "error", err, "next_try", x.next)
	}
}

// topicOnTrial lets the rows of a topic into the claims again. The topic counts
// as waiting until one of them was published: a topic that may be described but
// not written to looks well until then.
func (w *waits) topicOnTrial(topic string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x, known := w.topics[topic]; known {
		x.onTrial = true
		w.expires = time.Time{}
	}
}

// published ends the waits that these events show to be over. A topic of which
// other records failed goes on waiting.
func (w *waits) published(events []event, d *delivery) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.topics) == 0 {
		return // mostly, and at little cost
	}
	failedTopics := d.failedTopics()
	for i := range events {
		e := &events[i]
		if x, known := w.topics[e.topic]; known && !failedTopics[e.topic] {
			w.topicRecovered(e.topic, x)
		}
	}
}

func (w *waits) topicRecovered(topic string, x *wait) {
	delete(w.topics, topic)
	w.expires = time.Time{}
	w.log.Info("topic can be published to again", "topic", topic, "attempts", x.attempts)
}

// exclusions lists what a claim leaves alone now. What is due is let in again.
// A topic that then neither fails nor is published to for a while is forgotten:
// another relay has seen to it.
func (w *waits) exclusions() exclusions {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if now.Before(w.expires) {
		return w.cached
	}
	var skip exclusions
	w.expires = now.Add(time.Hour)
	for topic, x := range w.topics {
		switch {
		case !x.onTrial:
			skip.topics = append(skip.topics, topic)
		case now.Sub(x.next) > w.forgetAfter:
			w.topicRecovered(topic, x)
		default:
			w.expireAt(x.next.Add(w.forgetAfter))
		}
	}
	for _, k := range w.keys {
		switch {
		case k.until.IsZero():
			skip.keys = append(skip.keys, k.key)
		case now.Before(k.until):
			skip.keys = append(skip.keys, k.key)
			w.expireAt(k.until)
		}
	}
	slices.Sort(skip.topics)
	slices.Sort(skip.keys)
	skip.keys = slices.Compact(skip.keys)
	if !containsAll(skip.topics, w.cached.topics) || !containsAll(skip.keys, w.cached.keys) {
		w.version++
	}
	skip.version = w.version
	w.cached = skip
	return skip
}

// containsAll compares sorted lists.
func containsAll(list, part []string) bool {
	for _, s := range part {
		if _, found := slices.BinarySearch(list, s); !found {
			return false
		}
	}
	return true
}

func (w *waits) expireAt(t time.Time) {
	if t.Before(w.expires) {
		w.expires = t
	}
}

// tableChanged has the failure table read again.
func (w *waits) tableChanged() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stale = true
}

// outdated tells whether to read the failure table: it has changed, or keys
// wait and an operator or another relay may have decided about them.
func (w *waits) outdated(tick bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stale || tick && len(w.keys) > 0
}

func (w *waits) setKeys(keys []waitingKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keys, w.stale, w.expires = keys, false, time.Time{}
}

// onTrial tells whether any of the events is of a topic on trial.
func (w *waits) onTrial(events []event) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.topics) == 0 {
		return false
	}
	for i := range events {
		if _, known := w.topics[events[i].topic]; known {
			return true
		}
	}
	return false
}

// dueTopics are those to be asked about now.
func (w *waits) dueTopics() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var due []string
	for topic, x := range w.topics {
		if !x.onTrial && time.Now().After(x.next) {
			due = append(due, topic)
		}
	}
	return due
}

func (w *waits) snapshot() ([]WaitingTopic, int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	topics := make([]WaitingTopic, 0, len(w.topics))
	for topic, x := range w.topics {
		topics = append(topics, WaitingTopic{Topic: topic, Error: x.err.Error(), Attempts: x.attempts, NextTry: x.next})
	}
	return topics, len(w.keys)
}

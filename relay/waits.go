package relay

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// waits remembers what cannot be published now: topics that Kafka does not
// take records for, and rows that it refused. Their rows are left out of the
// claims until their next try, so that they neither stop nor slow the others.
//
// It is this process's memory: another relay finds out for itself, and a
// restart tries everything anew.
type waits struct {
	min, max    time.Duration
	forgetAfter time.Duration // past the next try
	maxAttempts int
	log         *slog.Logger

	mu     sync.Mutex
	topics map[string]*wait
	rows   map[int64]*wait
}

type wait struct {
	key      string // of a row
	err      error
	attempts int
	next     time.Time
	onTrial  bool // a topic whose rows are claimed again
}

func newWaits(cfg *Config, log *slog.Logger) *waits {
	return &waits{
		min: cfg.RetryMin, max: cfg.RetryMax, maxAttempts: cfg.MaxAttempts, log: log,
		// Time enough for a few looks at every row.
		forgetAfter: max(cfg.RetryMax, 10*cfg.PollInterval),
		topics:      map[string]*wait{}, rows: map[int64]*wait{},
	}
}

// failed notes one more failure and when to try again: a wait that doubles
// with each, with jitter so that topics that failed together come back apart.
func (w *waits) failed(x *wait, err error) {
	x.err = err
	x.attempts++
	x.onTrial = false
	pause := min(w.max, w.min<<min(x.attempts-1, 20))
	x.next = time.Now().Add(pause - rand.N(pause/4+1))
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
	}
}

// rowFailed notes a row that Kafka refused on its own merits. Its key waits
// with it until the row has failed maxAttempts times; then it is set aside, its
// key goes on, and it is tried again now and then. A row that is above the
// topic's limit is set aside at once, since only a new limit can help it.
func (w *waits) rowFailed(ctx context.Context, f failure, final bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x, known := w.rows[f.event.id]
	if !known {
		x = &wait{key: f.event.key}
		w.rows[f.event.id] = x
	}
	wasAside := x.attempts >= w.maxAttempts
	if final {
		x.attempts = max(x.attempts, w.maxAttempts-1)
	}
	w.failed(x, f.err)
	attrs := []any{
		"id", f.event.id, "event_id", f.event.eventID, "topic", f.event.topic,
		"error", f.err, "next_try", x.next,
	}
	switch {
	case x.attempts >= w.maxAttempts && !wasAside:
		w.log.ErrorContext(ctx, "row cannot be published, set aside: its key goes on without it", attrs...)
	case !known:
		w.log.WarnContext(ctx, "row refused by Kafka, its key waits with it", attrs...)
	}
}

// published ends the waits that these events show to be over. A topic of which
// other records failed goes on waiting.
func (w *waits) published(ctx context.Context, events []event, failedTopics map[string]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.rows) == 0 && len(w.topics) == 0 {
		return
	}
	for i := range events {
		e := &events[i]
		if x, known := w.rows[e.id]; known {
			delete(w.rows, e.id)
			w.log.InfoContext(ctx, "row published after all", "id", e.id, "event_id", e.eventID, "attempts", x.attempts)
		}
		if x, known := w.topics[e.topic]; known && !failedTopics[e.topic] {
			w.topicRecovered(e.topic, x)
		}
	}
}

func (w *waits) topicRecovered(topic string, x *wait) {
	delete(w.topics, topic)
	w.log.Info("topic can be published to again", "topic", topic, "attempts", x.attempts)
}

// exclusions lists what a claim leaves alone now. A row that is due is let in
// again. What then neither fails nor is published for a while is forgotten:
// another relay has seen to it.
func (w *waits) exclusions() exclusions {
	w.mu.Lock()
	defer w.mu.Unlock()
	var skip exclusions
	now := time.Now()
	for topic, x := range w.topics {
		switch {
		case !x.onTrial:
			skip.topics = append(skip.topics, topic)
		case now.Sub(x.next) > w.forgetAfter:
			w.topicRecovered(topic, x)
		}
	}
	for id, x := range w.rows {
		switch {
		case now.Sub(x.next) > w.forgetAfter:
			delete(w.rows, id)
		case now.After(x.next):
		case x.attempts >= w.maxAttempts:
			skip.ids = append(skip.ids, id)
		default:
			skip.keys = append(skip.keys, x.key)
		}
	}
	return skip
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
	return topics, len(w.rows)
}

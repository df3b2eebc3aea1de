package relay

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"time"
)

// Policy says what becomes of a row that has used up its attempts.
type Policy string

const (
	// Park sets the row aside for an operator; its key goes on without it.
	Park Policy = "park"
	// Block sets the row aside; its key waits until an operator decides.
	Block Policy = "block"
	// DeadLetter publishes the row to DLQTopic and marks it.
	DeadLetter Policy = "dlq"
)

// longestMessage bounds what is recorded of an error.
const longestMessage = 500

func oneLine(err error) string {
	message := strings.Join(strings.Fields(err.Error()), " ")
	if len(message) > longestMessage {
		message = strings.ToValidUTF8(message[:longestMessage], "")
	}
	return message
}

// judge decides about the rows that Kafka refused on their own merits. A row
// above the topic's limit has used up its attempts at once, since only a new
// limit can help it. Records still in doubt leave no client to publish dead
// letters with: those rows come again.
func (w *worker) judge(ctx context.Context, rows []failure, decided bool) []refusal {
	refusals := make([]refusal, 0, len(rows))
	var dead []*refusal
	for _, f := range rows {
		r := refusal{
			event: f.event, code: f.code, message: oneLine(f.err), attempts: f.event.attempts + 1,
			state: stateWaiting, pause: w.r.waits.pause(f.event.attempts + 1),
		}
		tooLarge, local := errors.AsType[*tooLargeError](f.err)
		if exhausted := r.attempts >= w.r.cfg.MaxAttempts || local && !tooLarge.assumed; !exhausted {
			refusals = append(refusals, r)
			continue
		}
		switch {
		case w.r.cfg.OnPoison != DeadLetter:
			r.state = stateParked
			refusals = append(refusals, r)
		case decided:
			refusals = append(refusals, r)
			dead = append(dead, &refusals[len(refusals)-1])
		}
	}
	w.deadLetters(ctx, dead)
	return refusals
}

// pause is the wait after so many failed attempts: doubled with each, with
// jitter so that what failed together comes back apart.
func (w *waits) pause(attempts int) time.Duration {
	pause := min(w.max, w.min<<min(max(attempts-1, 0), 20))
	return pause - rand.N(pause/4+1)
}

// refused says of refusals what an operator has to know: a line for a change of
// state, and once a minute at most for the same topic and code, however many
// rows there are.
func (w *worker) refused(ctx context.Context, refusals []refusal) {
	for _, r := range refusals {
		said, more := w.r.refusals.due(r.event.topic+" "+r.code+" "+r.state, time.Now())
		if !said {
			continue
		}
		attrs := []any{
			"id", r.event.id, "event_id", r.event.eventID, "topic", r.event.topic,
			"code", r.code, "error", r.message, "attempts", r.attempts,
		}
		if r.state == stateParked {
			attrs = append(attrs, "see", "relay parked")
		}
		if more > 0 {
			attrs = append(attrs, "more_like_it", more)
		}
		switch {
		case r.state == stateDeadLettered:
			w.r.log.ErrorContext(ctx, "row cannot be published, it stands in the dead-letter topic", attrs...)
		case r.state == stateParked && w.r.cfg.OnPoison == Block:
			w.r.log.ErrorContext(ctx, "row cannot be published, its key waits until it is requeued or discarded", attrs...)
		case r.state == stateParked:
			w.r.log.ErrorContext(ctx, "row cannot be published, set aside: its key goes on without it", attrs...)
		default:
			w.r.log.WarnContext(ctx, "row refused by Kafka, its key waits with it", attrs...)
		}
	}
}

// refusalLog keeps the log readable when many rows fail for the same cause.
type refusalLog struct {
	mu   sync.Mutex
	said map[string]*saidRefusal
}

type saidRefusal struct {
	last time.Time
	more int
}

// due tells whether to say it, and how many like it were not said.
func (l *refusalLog) due(what string, now time.Time) (say bool, more int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.said == nil {
		l.said = map[string]*saidRefusal{}
	}
	s := l.said[what]
	if s == nil {
		l.said[what] = &saidRefusal{last: now}
		return true, 0
	}
	if now.Sub(s.last) < time.Minute {
		s.more++
		return false, 0
	}
	more, s.last, s.more = s.more, now, 0
	return true, more
}

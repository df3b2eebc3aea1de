package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Replay names events that were published and are to be published again: those
// of a topic whose published_at is at or after From and before To. Events that
// were discarded are not among them, since they never were published.
type Replay struct {
	Topic    string
	From, To time.Time
	// Key, when it is not nil, keeps to the events of one partition key.
	Key *string
	// FromID leaves out the rows with a lower id, as the next one that a
	// [ReplayError] names.
	FromID int64
	// Rate is how many events a second are published at most; 0 sets no limit.
	Rate float64
}

// ReplayPlan is what a Replay comes to.
type ReplayPlan struct {
	Events int64
	// First and Last are the rows with the lowest and the highest id. They are
	// empty when there are no events.
	First, Last ReplayRow
}

// ReplayRow is one of the rows.
type ReplayRow struct {
	ID          int64
	EventID     string
	Key         string
	PublishedAt time.Time
}

// ReplayError tells how far a replay came. Published events are the first ones,
// and those behind Next may have been published as well, out of its sight; to
// begin again with Next keeps the order of each key.
type ReplayError struct {
	Published int64
	Next      ReplayRow
	Err       error
}

func (e *ReplayError) Error() string {
	return fmt.Sprintf("replay stopped after %d events, the next is row %d, published at %s: %v",
		e.Published, e.Next.ID, e.Next.PublishedAt.UTC().Format(time.RFC3339Nano), e.Err)
}

func (e *ReplayError) Unwrap() error { return e.Err }

// replayer is a replay under way.
type replayer struct {
	Replay
	cfg   *Config
	conn  *pgx.Conn
	plan  string
	batch string
	log   *slog.Logger
}

// Plan counts the events and changes nothing. It needs no Kafka.
func (r Replay) Plan(ctx context.Context, cfg Config) (ReplayPlan, error) {
	w, err := r.open(ctx, &cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return ReplayPlan{}, fmt.Errorf("plan the replay: %w", err)
	}
	defer closeConn(w.conn)
	return w.look(ctx)
}

// Run publishes the events again, in the order of their ids, as they were
// published the first time and with the header x-replayed-at. It changes nothing
// in the database, and takes in what there is when it begins. It returns how
// many events Kafka acknowledged; log is told of the progress every ten seconds.
//
// When Kafka fails or ctx ends it stops with a *[ReplayError], which says where
// to go on.
func (r Replay) Run(ctx context.Context, cfg Config, log *slog.Logger) (published int64, err error) {
	w, err := r.open(ctx, &cfg, log)
	if err != nil {
		return 0, fmt.Errorf("begin the replay: %w", err)
	}
	defer closeConn(w.conn)
	plan, err := w.look(ctx)
	if err != nil || plan.Events == 0 {
		return 0, err
	}
	return w.run(ctx, plan)
}

// batchSize is a tenth of a second's worth where there is a limit.
func (w *replayer) batchSize() int {
	if w.Rate == 0 {
		return w.cfg.BatchMax
	}
	return int(min(max(w.Rate/10, 1), float64(w.cfg.BatchMax)))
}

const replayProgressEvery = 10 * time.Second

func (w *replayer) run(ctx context.Context, plan ReplayPlan) (published int64, err error) {
	admin, err := kgo.NewClient(clientOptions(w.cfg)...)
	if err != nil {
		return 0, fmt.Errorf("build Kafka client: %w", err)
	}
	defer admin.Close()
	// The relay's own producer: partitioner, limits and compression are those
	// that the events were published with.
	producer, err := newProducer(w.cfg, newTopicLimits(admin))
	if err != nil {
		return 0, err
	}
	defer producer.close()

	next := plan.First
	stopped := func(err error) (int64, error) { return published, &ReplayError{published, next, err} }
	due, told := time.Now(), time.Now()
	for {
		events, err := w.next(ctx, next.ID, plan.Last.ID)
		if err != nil {
			return stopped(err)
		}
		if len(events) == 0 {
			return published, nil
		}
		next = events[0].row()
		if !sleep(ctx, time.Until(due)) {
			return stopped(context.Cause(ctx))
		}
		begun := later(due, time.Now())
		n, err := w.publish(ctx, producer, events)
		published += int64(n)
		if err != nil {
			next = events[n].row()
			return stopped(err)
		}
		next = events[n-1].row()
		next.ID++ // behind it
		if w.Rate > 0 {
			// Never from before this batch began: to catch up would exceed the
			// pace.
			due = begun.Add(time.Duration(float64(n) / w.Rate * float64(time.Second)))
		}
		if time.Since(told) >= replayProgressEvery {
			told = time.Now()
			w.log.InfoContext(ctx, "replay under way", "published", published, "events", plan.Events, "row", events[n-1].id)
		}
	}
}

func (e *replayedEvent) row() ReplayRow { return ReplayRow{e.id, e.eventID, e.key, e.publishedAt} }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// publish hands a batch to Kafka and waits for the answers, also when ctx ends
// meanwhile. It returns how many of its first events are acknowledged, and the
// error of the one behind them.
func (w *replayer) publish(ctx context.Context, p *producer, events []replayedEvent) (acked int, err error) {
	d := newDelivery(make([]event, len(events)), OrderKey)
	for i := range events {
		d.events[i] = events[i].event
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.cfg.PublishTimeout)
	defer cancel()
	p.missing = p.limits.learn(ctx, d.events)
	if err := p.connect(); err != nil {
		return 0, err
	}
	for i := range d.events {
		record, err := admitAgain(p, &d.events[i])
		if err != nil {
			d.set(i, err)
			break // those behind it are left unsent, and unanswered
		}
		p.hand(d, i, record)
	}
	p.flush(ctx, d) // what it did not wait for has no answer in d
	for i := range d.events {
		if err := d.err(i); err != nil {
			return i, replayFailure(err)
		}
	}
	return len(d.events), nil
}

// admitAgain builds the record, with the header that tells a replayed one. It may
// take it above the topic's limit where the first time it was not.
func admitAgain(p *producer, e *event) (*kgo.Record, error) {
	record, err := p.admit(e)
	if err != nil {
		return nil, err
	}
	record.Headers = append(record.Headers, kgo.RecordHeader{
		Key: "x-replayed-at", Value: time.Now().UTC().AppendFormat(nil, time.RFC3339Nano),
	})
	if size, limit := e.size(record), p.known.of(e.topic); size > limit.bytes {
		return nil, &tooLargeError{size: size, limit: limit.bytes, assumed: limit.assumed}
	}
	return record, nil
}

// replayFailure says what to do about an error of Kafka.
func replayFailure(err error) error {
	switch kind, code := classify(err); {
	case kind == kindTopic:
		return fmt.Errorf("the topic takes no records: %w: create it, or grant this client to write to it", err)
	case kind == kindRow:
		return fmt.Errorf("the row is refused by Kafka (%s): %w: raise the topic's max.message.bytes, or go on behind the row", code, err)
	case errors.Is(err, errPending), kind == kindOutage:
		return fmt.Errorf("no answer from Kafka, or none that helps (%s): %w: go on when it is back", code, err)
	}
	return err
}

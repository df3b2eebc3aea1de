package relay

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-relay/outbox-relay/notify"
)

// worker runs rounds of claim, publish and mark, one at a time.
type worker struct {
	r         *Relay
	index     int
	publisher publisher
	sizing    sizing
	busy      busyKeys
	full      bool // the last claim reached its limit
}

// lead runs the first worker, the one that listens to the doorbell. It returns
// when stop ends and its last round is over; work bounds that round.
func (w *worker) lead(stop, work context.Context) {
	source := notify.Reconnect // what is there already
	for failures := 0; ; {
		if w.r.cluster.pass(stop) != nil {
			return
		}
		w.r.metrics.wakes.WithLabelValues(string(source)).Inc()
		sweep := source == notify.Tick || source == notify.Reconnect
		round, err := w.round(work, sweep)
		if err == nil {
			source, err = w.r.bell.Load().Wait(stop, round)
		}
		if stop.Err() != nil {
			return
		}
		if err == nil {
			failures = 0
			w.r.database.works(stop)
			continue
		}
		w.r.database.failed(stop, oneLineError{err})
		source = notify.Reconnect
		if !sleep(stop, databaseBackoff(failures)) {
			return
		}
		failures++
	}
}

// assist runs the other workers: they join while there is a backlog.
func (w *worker) assist(stop, work context.Context) {
	for {
		select {
		case <-w.r.backlog:
		case <-stop.Done():
			return
		}
		w.r.assisting.Add(1)
		for w.full = true; w.full && stop.Err() == nil; {
			if w.r.cluster.pass(stop) != nil {
				break
			}
			if _, err := w.round(work, false); err != nil {
				// The lead reports it and waits; this one waits to be called.
				break
			}
		}
		w.r.assisting.Add(-1)
	}
}

func databaseBackoff(failures int) time.Duration {
	const first, longest = 50 * time.Millisecond, time.Second
	backoff := min(longest, first<<min(failures, 10))
	return backoff/2 + rand.N(backoff/2)
}

// sleep reports whether it slept to the end.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// round claims, publishes and marks once. A sweep looks at every row: those of
// all slices, and of keys that were busy a moment ago. Its error is the
// database's; failures of Kafka are dealt with here.
func (w *worker) round(work context.Context, sweep bool) (notify.Round, error) {
	began := time.Now()
	budget := w.r.cluster.budget(w.r.cfg.PublishTimeout)
	ctx, cancel := context.WithTimeout(work, budget)
	conn, err := w.r.pool.Acquire(ctx)
	if err != nil {
		cancel()
		return notify.Round{}, err
	}
	held := lease{conn: conn}
	defer held.release()
	defer cancel()

	win := w.window(sweep)
	claimed, err := w.r.sql.take(ctx, conn, win, w.r.cfg.Order)
	w.r.metrics.claimSeconds.Observe(time.Since(began).Seconds())
	if err != nil {
		return notify.Round{}, err
	}
	w.learn(claimed, win)
	if len(claimed.events) == 0 {
		return notify.Round{Full: w.full && win.slices > 1}, rollback(ctx, conn)
	}

	d := newDelivery(claimed.events, w.r.cfg.Order)
	handed := time.Now()
	decided := w.publisher.publish(ctx, d)
	w.r.metrics.publishSeconds.Observe(time.Since(handed).Seconds())
	if !decided {
		return notify.Round{}, w.settle(ctx, &held, d)
	}
	o := d.outcome()
	acked := time.Now()
	// The mark has time of its own: running out of it now would repeat events
	// that Kafka has.
	err = w.end(work, conn, o)
	w.conclude(work, o, len(claimed.events), acked)
	if err != nil {
		return notify.Round{}, err
	}
	if w.full {
		w.r.callAssistants()
	}
	more := w.full || win.slices > 1
	return notify.Round{Rows: len(o.acked), Full: more && len(o.acked) > 0}, nil
}

// end marks what was acknowledged and ends the transaction.
func (w *worker) end(ctx context.Context, conn *pgxpool.Conn, o outcome) error {
	ctx, cancel := context.WithTimeout(ctx, w.r.cfg.PublishTimeout)
	defer cancel()
	if len(o.acked) == 0 {
		return rollback(ctx, conn)
	}
	began := time.Now()
	err := w.r.sql.commit(ctx, conn, ids(o.acked))
	w.r.metrics.markSeconds.Observe(time.Since(began).Seconds())
	return err
}

// window decides what the next claim looks at. Under a backlog that several
// workers share, each keeps to its slice of the keys, so that they do not
// contend for the same rows; order does not rest on it.
func (w *worker) window(sweep bool) window {
	batch := w.sizing.batch()
	win := window{limit: batch * w.sizing.widen, batch: batch, slices: 1, skip: w.r.waits.exclusions()}
	if sweep || w.r.cfg.Order == OrderNone {
		return win
	}
	win.skip.keys = append(win.skip.keys, w.busy.skip(time.Now())...)
	if n := w.r.cfg.Workers; n > 1 && w.full && w.r.assisting.Load() > 0 {
		win.slices, win.slice = n, w.index
	}
	return win
}

func (w *worker) learn(c claim, win window) {
	w.full = c.full(win)
	contended := win.slices == 1 && w.r.assisting.Load() > 0
	w.sizing.learn(c, win, contended)
	w.busy.learn(time.Now(), c)
}

// settle waits for records that are in doubt. The transaction ends first: an
// outage may last for hours, and nothing may be held for that long. Records
// that turn out acknowledged are marked then.
func (w *worker) settle(ctx context.Context, held *lease, d *delivery) error {
	late := context.WithoutCancel(ctx)
	err := rollbackBounded(late, held.conn)
	held.release()
	w.r.cluster.publishFailed(ctx, errUndecided)
	w.r.metrics.publishErrors.WithLabelValues(string(kindOutage), "TIMEOUT").Inc()

	if !w.publisher.settle(w.r.work, d) {
		return err // shutting down: what is in doubt is published again
	}
	o := d.outcome()
	if len(o.acked) > 0 {
		err = errors.Join(err, w.markLate(w.r.work, ids(o.acked)))
	}
	w.conclude(w.r.work, o, len(d.events), time.Now())
	return err
}

var errUndecided = errors.New("no answer from Kafka within the publish timeout")

// markLate tries for as long as the database is away: giving up would repeat
// the events for certain.
func (w *worker) markLate(ctx context.Context, ids []int64) error {
	for failures := 0; ; failures++ {
		err := w.r.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
			ctx, cancel := context.WithTimeout(ctx, w.r.cfg.PublishTimeout)
			defer cancel()
			return w.r.sql.markLate(ctx, conn, ids)
		})
		if err == nil || !sleep(ctx, databaseBackoff(failures)) {
			return err
		}
	}
}

func rollbackBounded(ctx context.Context, conn *pgxpool.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return rollback(ctx, conn)
}

// conclude draws the consequences of an outcome.
func (w *worker) conclude(ctx context.Context, o outcome, batch int, acked time.Time) {
	w.r.metrics.round(o, batch, acked)
	if len(o.acked) > 0 {
		w.r.waits.published(ctx, o.acked)
	}
	failedTopics := map[string]bool{}
	for _, f := range o.topics {
		if !failedTopics[f.event.topic] {
			failedTopics[f.event.topic] = true
			w.r.waits.topicFailed(ctx, f.event.topic, f.err)
		}
	}
	for _, f := range o.rows {
		_, final := errors.AsType[*tooLargeError](f.err)
		w.r.waits.rowFailed(ctx, f, final)
	}
	switch {
	case o.outage != nil:
		w.r.cluster.publishFailed(ctx, o.outage)
	case len(o.acked) > 0:
		w.r.cluster.publishWorked(ctx)
	}
}

func ids(events []event) []int64 {
	list := make([]int64, len(events))
	for i := range events {
		list[i] = events[i].id
	}
	return list
}

// lease is a pooled connection that is given back once.
type lease struct{ conn *pgxpool.Conn }

func (l *lease) release() {
	if l.conn != nil {
		l.conn.Release()
		l.conn = nil
	}
}

package relay

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-relay/outbox-relay/internal/pgerr"
	"github.com/outbox-relay/outbox-relay/notify"
)

// worker runs rounds of claim, publish and mark, one at a time.
type worker struct {
	r         *Relay
	index     int
	publisher publisher
	sizing    sizing
	busy      busyKeys
	full      bool          // the last claim reached its limit
	settled   chan struct{} // closed once the last delivery in doubt is settled
}

// lead runs the first worker, the one that listens to the doorbell. It returns
// when stop ends and its last round is over; work bounds that round.
func (w *worker) lead(stop, work context.Context) {
	source := notify.Reconnect // what is there already
	bell := w.r.bell.Load()
	for failures := 0; ; {
		if !w.r.cluster.isOpen() {
			// For the length of the outage writers need not notify.
			bell.Release(stop)
		}
		if w.r.cluster.pass(stop) != nil {
			return
		}
		w.r.metrics.wakes.WithLabelValues(string(source)).Inc()
		sweep := source == notify.Tick || source == notify.Reconnect
		round, err := w.round(work, sweep)
		if err == nil {
			w.r.database.works(stop)
			if sweep && round.Rows == 0 {
				w.r.cluster.nothingToPublish(stop)
			}
			source, err = bell.Wait(stop, round)
		}
		if stop.Err() != nil {
			return
		}
		if err == nil {
			failures = 0
			continue
		}
		w.r.database.failed(stop, pgerr.OneLine(err))
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
	ctx, cancel := context.WithTimeout(work, w.r.cfg.PublishTimeout)
	defer cancel()
	conn, err := w.r.pool.Acquire(ctx)
	if err != nil {
		return notify.Round{}, err
	}
	defer conn.Release()

	win := w.window(sweep)
	claimed, err := w.r.sql.take(ctx, conn, win, w.r.cfg.Order)
	w.r.metrics.claimSeconds.Observe(time.Since(began).Seconds())
	if err != nil {
		return notify.Round{}, err
	}
	w.learn(claimed, win)
	if len(claimed.events) == 0 {
		// A full window of rows that others hold says nothing about the rows
		// behind it. Their keys are left out of the next claim.
		return notify.Round{Full: w.full && (win.slices > 1 || len(claimed.held) > 0)}, rollback(ctx, conn)
	}

	d := newDelivery(claimed.events, w.r.cfg.Order)
	decided := w.publish(ctx, d)
	// Also when some records have no answer yet, the transaction ends now, with
	// what was acknowledged: an outage may last for hours, and nothing may be
	// held for that long.
	acked := time.Now()
	o := d.outcome()
	err = w.end(work, conn, &o)
	w.r.metrics.batch(len(claimed.events))
	w.conclude(work, o, acked)
	if !decided {
		w.settle(work, d)
	}
	if err != nil {
		return notify.Round{}, err
	}
	if w.full {
		w.r.callAssistants()
	}
	more := w.full || win.slices > 1
	return notify.Round{Rows: len(o.acked), Full: more && len(o.acked) > 0}, nil
}

// publish gives Kafka what is left of the transaction's time, and a second only
// where it has to prove itself after a failure.
func (w *worker) publish(ctx context.Context, d *delivery) (decided bool) {
	began := time.Now()
	if w.r.cluster.onTrial() || w.r.waits.onTrial(d.events) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, trialTimeout)
		defer cancel()
	}
	decided = w.publisher.publish(ctx, d)
	w.r.metrics.publishSeconds.Observe(time.Since(began).Seconds())
	return decided
}

// end marks what was acknowledged and ends the transaction. The mark has time
// of its own: running out of it now would repeat events that Kafka has. If it
// fails, nothing counts as marked.
func (w *worker) end(ctx context.Context, conn *pgxpool.Conn, o *outcome) error {
	ctx, cancel := context.WithTimeout(ctx, w.r.cfg.PublishTimeout)
	defer cancel()
	if len(o.acked) == 0 {
		return rollback(ctx, conn)
	}
	began := time.Now()
	err := w.r.sql.commit(ctx, conn, ids(o.acked))
	w.r.metrics.markSeconds.Observe(time.Since(began).Seconds())
	if err != nil {
		o.acked = nil
	}
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

// settle waits in the background for records that are in doubt, and marks
// those that turn out acknowledged. The worker goes on with a new client
// meanwhile: one partition without a leader must not hold up all others. It
// goes on at once only for the first delivery in doubt, so that an outage does
// not pile them up.
//
// Order does not suffer when such a record arrives late: by the rule, whatever
// is published behind it in its key was published behind a repeat of it.
func (w *worker) settle(ctx context.Context, d *delivery) {
	finish := w.publisher.detach()
	if w.settled != nil {
		select {
		case <-w.settled:
		case <-ctx.Done():
		}
	}
	done := make(chan struct{})
	w.settled = done
	w.r.rounds.Go(func() {
		defer close(done)
		finish(ctx)
		o := d.outcome()
		if len(o.acked) == 0 || !w.markLate(ctx, ids(o.acked)) {
			return
		}
		w.r.metrics.eventsPublished(o.acked, time.Now())
		w.r.waits.published(ctx, o.acked)
	})
}

// markLate reports whether it marked. It tries for as long as the database is
// away, since giving up would repeat the events for certain, but not against a
// database that refuses.
func (w *worker) markLate(ctx context.Context, ids []int64) bool {
	for failures := 0; ; failures++ {
		err := w.r.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
			ctx, cancel := context.WithTimeout(ctx, w.r.cfg.PublishTimeout)
			defer cancel()
			return w.r.sql.markLate(ctx, conn, ids)
		})
		if err == nil {
			return true
		}
		if pgerr.Refused(err) || !sleep(ctx, databaseBackoff(failures)) {
			w.r.log.WarnContext(ctx, "events acknowledged late could not be marked, they will be repeated",
				"events", len(ids), "error", pgerr.OneLine(err))
			return false
		}
	}
}

// conclude draws the consequences of an outcome. Records that fail while others
// are acknowledged say that something is wrong with their topic and not with
// the cluster.
func (w *worker) conclude(ctx context.Context, o outcome, acked time.Time) {
	w.r.metrics.eventsPublished(o.acked, acked)
	w.r.metrics.failed(o)
	w.r.waits.published(ctx, o.acked)

	topics := o.topics
	switch {
	case len(o.outage) > 0 && len(o.acked) == 0:
		w.r.cluster.publishFailed(o.outage[0].err)
	case len(o.acked) > 0:
		topics = append(topics, o.outage...)
		w.r.cluster.publishWorked(ctx)
	}
	failed := map[string]bool{}
	for _, f := range topics {
		if !failed[f.event.topic] {
			failed[f.event.topic] = true
			w.r.waits.topicFailed(ctx, f.event.topic, f.err)
		}
	}
	for _, f := range o.rows {
		_, final := errors.AsType[*tooLargeError](f.err)
		w.r.waits.rowFailed(ctx, f, final)
	}
}

func ids(events []event) []int64 {
	list := make([]int64, len(events))
	for i := range events {
		list[i] = events[i].id
	}
	return list
}

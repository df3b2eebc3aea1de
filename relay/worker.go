package relay

import (
	"context"
	"math/rand/v2"
	"slices"
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
	full      bool // the last claim reached its limit
	idle      bool // the last claim held nothing
	none      bool // the last claim saw no row
	huge      bool // the last claim held huge rows
	glance    int  // how many rows the next glimpse looks at, 0: the fewest

	marking *marking // of the last claim, until that is seen to be over
	cursor  cursor
}

// lead runs the first worker, the one that listens to the doorbell. It returns
// when stop ends and its last round is over; work bounds that round.
func (w *worker) lead(stop, work context.Context) {
	source := notify.Reconnect // what is there already
	bell := w.r.bell.Load()
	for failures := 0; ; {
		if w.waitForKafka(stop, bell) != nil {
			return
		}
		w.r.metrics.wakes.WithLabelValues(string(source)).Inc()
		if source == notify.Reconnect {
			w.r.waits.tableChanged()
		}
		tick := source == notify.Tick || source == notify.Reconnect
		if tick {
			w.r.low.sweep()
		}
		var round notify.Round
		err := w.r.readFailures(work, tick)
		if err == nil {
			round, err = w.round(work, tick)
		}
		if err == nil {
			w.r.database.works(stop)
			if tick && w.none {
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
		w.r.databaseFailed(stop, err)
		source = notify.Reconnect
		if !sleep(stop, databaseBackoff(failures)) {
			return
		}
		failures++
	}
}

// waitForKafka returns once the gate is open. Until then writers need not
// notify.
func (w *worker) waitForKafka(stop context.Context, bell *notify.Doorbell) error {
	for !w.r.cluster.isOpen() {
		bell.Release(stop)
		ctx, cancel := context.WithTimeout(stop, w.r.cfg.PollInterval)
		_ = w.r.cluster.pass(ctx) // or release the bell again, if that failed
		cancel()
		if stop.Err() != nil {
			break
		}
	}
	return stop.Err()
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
		for w.full = true; w.full && w.index < w.r.sharers() && stop.Err() == nil; {
			if w.r.cluster.pass(stop) != nil {
				break
			}
			round, err := w.round(work, false)
			if err != nil {
				w.r.low.dropCursors() // the lead reports it
			}
			if err != nil || round.Rows == 0 || w.huge {
				break // until it is called again
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

// round claims, publishes and marks once. On a tick it looks at rows of all
// slices, and of keys that were busy a moment ago. Its error is the database's;
// failures of Kafka are dealt with here.
func (w *worker) round(work context.Context, tick bool) (notify.Round, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(work, w.r.cfg.PublishTimeout)
	defer cancel()
	conn, err := w.r.pool.Acquire(ctx)
	if err != nil {
		return notify.Round{}, err
	}
	handedOver := false
	defer func() {
		if !handedOver {
			conn.Release()
		}
	}()

	beingMarked, err := w.inMarking()
	if err != nil {
		return notify.Round{}, err
	}
	late, err := w.r.unmarked.mark(ctx, &w.r.sql, conn)
	if err != nil {
		return notify.Round{}, err
	}
	w.r.metrics.eventsPublished(late, time.Now())
	win := w.window(tick, began)
	win.marking = beingMarked
	claimed, err := w.r.sql.take(ctx, conn, win, w.r.cfg.Order)
	w.r.metrics.claimSeconds.Observe(time.Since(began).Seconds())
	if err != nil {
		return notify.Round{}, err
	}
	w.learn(claimed, win)
	if claimed.first-w.r.low.bound(win.skip.version).id > lowWaterStep {
		w.r.low.advance(time.Now())
	}
	if win.glimpse {
		w.r.low.dropCursors()
	}
	if w.idle {
		// A full window of rows that others hold says nothing about the rows
		// behind it. Their keys are left out of the next claim.
		return notify.Round{Full: w.full && (win.slices > 1 || len(claimed.held) > 0)}, rollback(ctx, conn)
	}

	d := newDelivery(claimed.events, w.r.cfg.Order)
	decided := w.publish(ctx, d)
	acked := time.Now()
	o := d.outcome()
	w.r.metrics.batch(len(claimed.events))
	whole := decided && len(o.acked) == len(claimed.events)
	if whole {
		handedOver = true
		if !tick && w.r.cfg.Order == OrderKey {
			w.cursor.advance(claimed, win)
		}
		err = w.markBehind(work, conn, d, o, acked)
	} else {
		// Also when some records have no answer yet, the transaction ends now,
		// with what was acknowledged: an outage may last for hours, and nothing
		// may be held for that long.
		refusals := w.judge(ctx, o.rows, decided)
		err = w.end(work, conn, &o, refusals)
		w.conclude(work, d, o, acked)
		if err == nil {
			w.refused(work, refusals)
		}
	}
	if !decided {
		w.settle(work, d)
	}
	if err != nil {
		return notify.Round{}, err
	}
	if w.full && !w.huge {
		w.r.callAssistants()
	}
	more := w.full || win.slices > 1
	return notify.Round{
		Rows:  len(o.acked),
		Full:  more && len(o.acked) > 0,
		Clear: whole && !more && !win.partial && claimed.walked == len(claimed.events),
	}, nil
}

// publish gives Kafka what is left of the transaction's time, and less where it
// has to prove itself after a failure.
func (w *worker) publish(ctx context.Context, d *delivery) (decided bool) {
	began := time.Now()
	limit, onTrial := w.r.cluster.trial()
	if w.r.waits.onTrial(d.events) {
		limit, onTrial = trialTimeout, true
	}
	if onTrial {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	decided = w.publisher.publish(ctx, d)
	w.r.metrics.publishSeconds.Observe(time.Since(began).Seconds())
	return decided
}

// marking is the mark of a claim that runs beside the next one.
type marking struct {
	ids  []int64
	done chan struct{}
	err  error // once done
}

// markBehind marks a claim of which every record was acknowledged while the
// worker goes on: a third of the time of a small claim goes into its mark. One
// mark at a time is under way, on the claim's own connection, which it gives
// back.
//
// Until it is over, the next claims of this worker leave its rows out by their
// ids. Order does not suffer: what follows them in their keys is published after
// they were acknowledged. If the mark fails, the next round says so, and they are
// published again.
func (w *worker) markBehind(work context.Context, conn *pgxpool.Conn, d *delivery, o outcome, acked time.Time) error {
	var err error
	if w.marking != nil {
		<-w.marking.done
		err = w.marking.err
	}
	m := &marking{ids: ids(o.acked), done: make(chan struct{})}
	w.marking = m
	w.r.rounds.Go(func() {
		defer close(m.done)
		defer conn.Release()
		m.err = w.end(work, conn, &o, nil)
		w.conclude(work, d, o, acked)
	})
	return err
}

// inMarking are rows that were acknowledged and may not show as published yet.
// It returns what became of the last mark, once.
func (w *worker) inMarking() ([]int64, error) {
	if w.marking == nil {
		return nil, nil
	}
	select {
	case <-w.marking.done:
		err := w.marking.err
		w.marking = nil
		return nil, err
	default:
		return w.marking.ids, nil
	}
}

// end marks what was acknowledged, records what was refused, and ends the
// transaction. The mark has time of its own: running out of it now would repeat
// events that Kafka has. If it fails, nothing counts as marked; see unmarked.
func (w *worker) end(ctx context.Context, conn *pgxpool.Conn, o *outcome, refusals []refusal) error {
	ctx, cancel := context.WithTimeout(ctx, w.r.cfg.PublishTimeout)
	defer cancel()
	c := conclusion{marked: ids(o.acked), refusals: refusals, forgiven: recorded(o.acked)}
	for i := range refusals {
		if refusals[i].state == stateDeadLettered {
			c.marked = append(c.marked, refusals[i].event.id)
		}
	}
	if c.empty() {
		return rollback(ctx, conn)
	}
	began := time.Now()
	err := w.r.sql.commit(ctx, conn, c)
	w.r.metrics.markSeconds.Observe(time.Since(began).Seconds())
	switch {
	case err != nil:
		w.r.unmarked.add(o.acked)
		o.acked = nil
	case len(refusals)+len(c.forgiven) > 0:
		w.r.waits.tableChanged()
	}
	return err
}

// window decides what the next claim looks at. Under a backlog that several
// relays and workers share, each keeps to its slice of the keys, so that they do
// not contend for the same rows; order does not rest on it.
func (w *worker) window(tick bool, now time.Time) window {
	batch := w.sizing.batch()
	skip := w.r.waits.exclusions()
	win := window{
		limit: batch * w.sizing.widen, batch: batch, bytes: w.r.cfg.BatchBytes,
		slices: 1, skip: skip, above: w.r.low.bound(skip.version), settled: w.r.low.settledTo(),
	}
	switch {
	case tick && w.full && w.r.cfg.Order == OrderKey:
		// The others see to most of these rows, and a whole batch would be in
		// their way. Those that nobody sees to come first, behind what is held.
		win.batch = w.r.cfg.BatchSize
		win.limit, win.glimpse = max(w.glance, win.batch), true
		return win
	case tick, w.r.cfg.Order == OrderNone:
		return win
	}
	if busy := w.busy.skip(now); len(busy) > 0 {
		win.skip.keys, win.partial = slices.Concat(skip.keys, busy), true // skip is shared
	}
	if w.full {
		team, rank := w.r.team()
		workers := 1
		if w.r.assisting.Load() > 0 {
			workers = w.r.sharers()
		}
		// First by relay, so that relays may have different numbers of workers.
		win.slices, win.slice = team*workers, rank+team*w.index
		win.above = w.cursor.above(win)
	}
	return win
}

func (w *worker) learn(c claim, win window) {
	w.full, w.idle, w.none, w.huge = c.full(win), len(c.events) == 0, c.walked == 0, c.huge(win)
	if win.glimpse {
		w.glance = 0
		if w.idle && w.full {
			w.glance = min(2*win.limit, w.r.cfg.BatchMax*maxWiden)
		}
		return
	}
	team, _ := w.r.team()
	contended := team > 1 || win.slices == 1 && w.r.assisting.Load() > 0
	w.sizing.learn(c, win, contended)
	w.busy.learn(time.Now(), c)
}

// settle waits in the background for records that are in doubt, and marks
// those that turn out acknowledged. The worker goes on with a new client
// meanwhile: one partition without a leader must not hold up all others. The
// wait is bounded, since a record that the broker may have is never given up by
// the client, and with it how many such clients there are; what is still in
// doubt then is published again.
//
// Order does not suffer when such a record arrives late: by the rule, whatever
// is published behind it in its key was published behind a repeat of it.
func (w *worker) settle(work context.Context, d *delivery) {
	finish := w.publisher.detach()
	w.r.rounds.Go(func() {
		ctx, cancel := context.WithTimeout(work, w.r.cfg.PublishTimeout)
		defer cancel()
		finish(ctx)
		acked := time.Now()
		o := d.outcome()
		if len(o.acked) == 0 || !w.markLate(work, o.acked) {
			return
		}
		w.r.metrics.eventsPublished(o.acked, acked)
		w.r.waits.published(o.acked, d)
		// It works, if slowly. The next one is given its full time.
		w.r.cluster.publishWorked(work, acked)
	})
}

// markLate reports whether it marked. It tries for as long as the database is
// away, since giving up would repeat the events for certain, but not against a
// database that refuses.
func (w *worker) markLate(ctx context.Context, acked []event) bool {
	for failures := 0; ; failures++ {
		err := w.r.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
			ctx, cancel := context.WithTimeout(ctx, w.r.cfg.PublishTimeout)
			defer cancel()
			return w.r.sql.markLate(ctx, conn, acked)
		})
		if err == nil {
			return true
		}
		if pgerr.Refused(err) || !sleep(ctx, databaseBackoff(failures)) {
			w.r.log.WarnContext(ctx, "events acknowledged late could not be marked, they will be repeated",
				"events", len(acked), "error", pgerr.OneLine(err))
			return false
		}
	}
}

// conclude draws the consequences of an outcome. Records that fail while others
// are acknowledged say that something is wrong with their topic and not with
// the cluster.
func (w *worker) conclude(ctx context.Context, d *delivery, o outcome, acked time.Time) {
	w.r.metrics.eventsPublished(o.acked, acked)
	w.r.metrics.failed(o)
	w.r.waits.published(o.acked, d)

	topics := o.topics
	switch {
	case len(o.outage) > 0 && len(o.acked) == 0:
		w.r.cluster.publishFailed(d.began, o.outage[0].err)
	case len(o.outage) > 0:
		// Some may have been acknowledged long before the others failed. With an
		// outage known since this began, it is that which they failed by.
		if w.r.cluster.publishWorked(ctx, d.began) {
			topics = append(topics, o.outage...)
		}
	case len(o.acked) > 0:
		w.r.cluster.publishWorked(ctx, acked)
	}
	told := map[string]bool{}
	for _, f := range topics {
		if !told[f.event.topic] {
			told[f.event.topic] = true
			w.r.waits.topicFailed(ctx, f.event.topic, f.err)
		}
	}
}

func ids(events []event) []int64 {
	list := make([]int64, len(events))
	for i := range events {
		list[i] = events[i].id
	}
	return list
}

package relay

import (
	"errors"
	"sync"
	"time"
)

// delivery is one claim on its way through Kafka.
type delivery struct {
	events []event
	order  Order
	began  time.Time

	mu   sync.Mutex
	errs []error // by event: nil once acknowledged, errPending until decided
	told []bool  // by event: part of an outcome already
}

var (
	// errPending is the state of a record that Kafka has not answered for.
	errPending = errors.New("no answer from Kafka in time")
	// errNotSent is the outcome of records whose topics the client could not
	// learn of in time.
	errNotSent = errors.New("no answer from Kafka about the topics in time")
	// errBehind is the outcome of a row that was not handed to Kafka because an
	// earlier row of its key failed.
	errBehind = errors.New("an earlier row of its key failed")
)

func newDelivery(events []event, order Order) *delivery {
	d := &delivery{
		events: events, order: order, began: time.Now(),
		errs: make([]error, len(events)), told: make([]bool, len(events)),
	}
	for i := range d.errs {
		d.errs[i] = errPending
	}
	return d
}

func (d *delivery) set(i int, err error) {
	d.mu.Lock()
	d.errs[i] = err
	d.mu.Unlock()
}

// giveUp decides about the events that are not decided.
func (d *delivery) giveUp(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.errs {
		if errors.Is(d.errs[i], errPending) {
			d.errs[i] = err
		}
	}
}

func (d *delivery) err(i int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.errs[i]
}

// refused lists the events that the broker refused as part of a batch. Those
// that were never handed over are decided already.
func (d *delivery) refused() []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	var refused []int
	ended := map[stream]bool{}
	for i, err := range d.errs {
		if err == nil {
			continue
		}
		s := d.events[i].stream()
		kind, _ := classify(err)
		_, local := errors.AsType[*tooLargeError](err)
		if kind == kindRow && !local && !ended[s] {
			refused = append(refused, i)
			continue
		}
		ended[s] = ended[s] || d.order == OrderKey
	}
	return refused
}

// failedTopics are those of which a record failed or has no answer.
func (d *delivery) failedTopics() map[string]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	failed := map[string]bool{}
	for i, err := range d.errs {
		if kind, _ := classify(err); kind == kindTopic || kind == kindOutage {
			failed[d.events[i].topic] = true
		}
	}
	return failed
}

// outcome is what came of a delivery so far.
type outcome struct {
	acked  []event
	rows   []failure // to be blamed on the row
	topics []failure // to be blamed on the topic
	outage []failure // everything else, records without an answer included
}

type failure struct {
	event event
	err   error
	code  string
}

// outcome takes the acknowledged head of each key. What was acknowledged
// behind a failure is left unmarked and will be repeated in its place. An event
// is told of once, but for one without an answer, which may still get it.
func (d *delivery) outcome() outcome {
	d.mu.Lock()
	defer d.mu.Unlock()
	var o outcome
	ended := map[stream]bool{}
	for i, err := range d.errs {
		e := d.events[i]
		if err != nil {
			ended[e.stream()] = d.order == OrderKey
		}
		if d.told[i] || err == nil && ended[e.stream()] || errors.Is(err, errBehind) {
			continue
		}
		d.told[i] = !errors.Is(err, errPending)
		if err == nil {
			o.acked = append(o.acked, e)
			continue
		}
		kind, code := classify(err)
		f := failure{e, err, code}
		switch kind {
		case kindRow:
			o.rows = append(o.rows, f)
		case kindTopic:
			o.topics = append(o.topics, f)
		default:
			o.outage = append(o.outage, f)
		}
	}
	return o
}

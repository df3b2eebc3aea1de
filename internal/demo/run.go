package demo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outbox-relay/outbox-relay/internal/load"
)

const (
	// customers are the partition keys, connections the writers'.
	customers   = 32
	connections = 16

	// settleTimeout is how long events may take to arrive after the last
	// commit before they count as lost.
	settleTimeout = 30 * time.Second
)

// Serve runs a relay on the stage until ctx ends and it has stopped in an
// orderly way. It calls ready once the relay publishes.
type Serve func(ctx context.Context, ready func()) error

// Plan says how much is written.
type Plan struct {
	// Rate is in orders a second.
	Rate     float64
	Duration time.Duration
	Display  *Display
}

// Run writes orders according to plan while serve relays their events, and
// returns what became of them. When ctx ends, writing stops early and what was
// committed until then is still accounted for.
//
// It fails when the relay, the writer or the consumer fails. Loss and disorder
// are no errors: see Summary.Broken.
func (s *Stage) Run(ctx context.Context, plan Plan, serve Serve) (Summary, error) {
	ledger := load.NewLedger()
	consumer, err := load.NewConsumer(s.Brokers, []string{s.Topic}, ledger)
	if err != nil {
		return Summary{}, err
	}
	defer consumer.Close()
	consumer.OnRecord = plan.Display.event

	// Only the writer stops with ctx: relay and consumer have to finish what
	// is under way.
	group, running := errgroup.WithContext(context.WithoutCancel(ctx))
	running, stop := context.WithCancel(running)
	defer stop()
	relaying, stopRelay := context.WithCancel(running)
	defer stopRelay()
	ready, relayDone := make(chan struct{}), make(chan struct{})

	group.Go(func() error {
		defer close(relayDone)
		return serve(relaying, func() { close(ready) })
	})
	group.Go(func() error { return consumer.Run(running) })

	var summary Summary
	group.Go(func() error {
		defer stop()
		if !await(ctx, running, ready) || !await(ctx, running, consumer.Ready()) {
			return ctx.Err()
		}
		behind, err := s.write(ctx, running, plan, ledger)
		if err != nil {
			return err
		}
		stopRelay()
		<-relayDone
		summary, err = s.account(running, consumer, ledger, behind)
		return err
	})
	err = group.Wait()
	return summary, err
}

// write places the orders and waits until their events have arrived, or are
// overdue. It returns by how much the writer fell behind.
func (s *Stage) write(ctx, running context.Context, plan Plan, ledger *load.Ledger) (time.Duration, error) {
	writer := &load.Writer{
		URL:    s.DatabaseURL,
		Insert: s.placeOrder(),
		Ledger: ledger,
		Topics: []string{s.Topic},
		Keys:   customers, KeyPrefix: "customer-",
		Conns: connections,
		Rate:  plan.Rate,
		Count: int(math.Ceil(plan.Rate * plan.Duration.Seconds())),
	}
	// The count is reached in time unless the database is slower than the
	// rate: the demo ends by itself in any case.
	writing, cancel := context.WithTimeout(ctx, plan.Duration+time.Second)
	defer cancel()
	defer context.AfterFunc(running, cancel)()

	displaying, endDisplay := context.WithCancel(running)
	defer endDisplay()
	var display errgroup.Group
	display.Go(func() error {
		plan.Display.run(displaying, ledger)
		return nil
	})
	err := writer.Run(writing)
	if err == nil {
		settle, cancel := context.WithTimeout(running, settleTimeout)
		defer cancel()
		_ = ledger.Await(settle) // what is missing then is in the report
	}
	endDisplay()
	return writer.Behind(), errors.Join(err, display.Wait())
}

// account closes the books: the relay has stopped, so nothing more arrives.
func (s *Stage) account(ctx context.Context, consumer *load.Consumer, ledger *load.Ledger, behind time.Duration) (Summary, error) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	if err := consumer.CatchUp(ctx); err != nil {
		return Summary{}, err
	}
	published, err := s.countPublished(ctx)
	if err != nil {
		return Summary{}, err
	}
	report := ledger.Report()
	if report.Unknown > 0 {
		return Summary{}, fmt.Errorf("topic %s holds %d records whose x-event-id is of no event of this demo", s.Topic, report.Unknown)
	}
	return summarize(report, published, behind), nil
}

// await returns false when one of the contexts ends before done is closed.
func await(ctx, running context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
	case <-running.Done():
	}
	return false
}

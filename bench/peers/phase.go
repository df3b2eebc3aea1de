package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outbox-relay/outbox-relay/internal/load"
)

// stallTimeout is how long nothing may come out before a contender has failed.
const stallTimeout = time.Minute

// phase is one measurement, on a topic of its own, so that what one leaves over
// never counts in the next.
type phase struct {
	topic    string
	ledger   *load.Ledger
	consumer *load.Consumer
}

// runPhase lets act write events, waits until all are consumed, and returns
// what was found. It fails when they do not come out.
func runPhase(ctx context.Context, s *stage, name string, act func(context.Context, *phase) error) (load.Report, error) {
	topic, err := s.topic(ctx, name)
	if err != nil {
		return load.Report{}, err
	}
	p := &phase{topic: topic, ledger: load.NewLedger()}
	if p.consumer, err = load.NewConsumer(s.brokers, []string{topic}, p.ledger); err != nil {
		return load.Report{}, err
	}
	defer p.consumer.Close()

	group, ctx := errgroup.WithContext(ctx)
	consuming, stop := context.WithCancel(ctx)
	group.Go(func() error { return p.consumer.Run(consuming) })
	group.Go(func() error {
		defer stop()
		return p.run(ctx, act)
	})
	if err := group.Wait(); err != nil {
		return load.Report{}, fmt.Errorf("%s: %w", name, err)
	}
	return p.ledger.Report(), nil
}

func (p *phase) run(ctx context.Context, act func(context.Context, *phase) error) error {
	select {
	case <-p.consumer.Ready():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := act(ctx, p); err != nil {
		return err
	}
	if err := p.settle(ctx); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, stallTimeout)
	defer cancel()
	return p.consumer.CatchUp(bounded)
}

// settle waits until everything came out, for as long as something does.
func (p *phase) settle(ctx context.Context) error {
	consumed := -1
	for {
		bounded, cancel := context.WithTimeout(ctx, stallTimeout)
		err := p.ledger.Await(bounded)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		counts, _ := p.ledger.Counts(0)
		if counts.Consumed == consumed {
			return fmt.Errorf("nothing came out for %s: %w", stallTimeout, err)
		}
		consumed = counts.Consumed
	}
}

// pause waits, and returns early with the reason when ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

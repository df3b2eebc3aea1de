package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-relay/outbox-relay/internal/load"
)

// drain measures how fast a backlog comes out that was written while nobody
// published.
func (m *measurement) drain(ctx context.Context) error {
	if err := m.peer.pause(ctx); err != nil {
		return fmt.Errorf("drain: pause: %w", err)
	}
	counter := newCounter(m.cfg.DrainRows)
	var began time.Time
	var used usage
	report, err := runPhase(ctx, m.stage, "drain", func(ctx context.Context, p *phase) error {
		if err := m.preload(ctx, p); err != nil {
			return err
		}
		var first usage
		var firstErr error
		counter.onFirst = func() { first, firstErr = m.meter().read() }
		p.consumer.OnRecord = counter.onRecord
		began = time.Now()
		if err := m.peer.resume(ctx, m.stage); err != nil {
			return err
		}
		err := m.step(ctx, p.settle)
		last, lastErr := m.meter().read()
		used = last.minus(first)
		return errors.Join(err, lastErr, firstErr)
	})
	if err != nil {
		return err
	}
	m.result.add(report)
	m.result.Drain = drainResult{
		Events:  report.Committed,
		Startup: counter.firstAt().Sub(began),
		Took:    counter.lastAt().Sub(counter.firstAt()),
		Used:    used,
	}
	fmt.Fprintf(m.say, "  drain: %.0f events/s, %.1f s after its start\n", m.result.Drain.rate(), m.result.Drain.Startup.Seconds())
	return nil
}

// preload writes the backlog, of 1,000 keys in turn, one row a transaction as a
// service does: a backlog is what piled up while nobody published. Each key
// belongs to one of the connections, so that its ids are in its order.
func (m *measurement) preload(ctx context.Context, p *phase) error {
	const keys, conns = 1000, 8
	insert := load.InsertOutbox(outboxTable)
	group, ctx := errgroup.WithContext(ctx)
	for c := range conns {
		group.Go(func() error {
			conn, err := pgx.ConnectConfig(ctx, m.stage.pool.Config().ConnConfig)
			if err != nil {
				return fmt.Errorf("write a backlog: %w", err)
			}
			defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
			// The disk is not what is measured here.
			if _, err := conn.Exec(ctx, "SET synchronous_commit = off"); err != nil {
				return fmt.Errorf("write a backlog: %w", err)
			}
			for number := c; number < m.cfg.DrainRows; number += conns {
				id, err := uuid.NewV7()
				if err != nil {
					return fmt.Errorf("make an event id: %w", err)
				}
				event := load.Event{
					ID: id, Topic: p.topic, PayloadSize: m.cfg.PayloadBytes,
					Key: fmt.Sprintf("backlog-%04d", number%keys), Seq: int64(number/keys + 1),
				}
				p.ledger.Sending(event, time.Now())
				if err := insert(ctx, conn, event); err != nil {
					return fmt.Errorf("write a backlog: %w", err)
				}
				p.ledger.Committed(id, time.Now())
			}
			return nil
		})
	}
	return group.Wait()
}

// counter notes when the first and the last record of a number arrive.
type counter struct {
	onFirst func()

	mu          sync.Mutex
	want, seen  int
	first, last time.Time
}

func newCounter(want int) *counter { return &counter{want: want} }

func (c *counter) onRecord(*kgo.Record, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen++
	if c.seen == 1 {
		c.first = time.Now()
		if c.onFirst != nil {
			c.onFirst()
		}
	}
	if c.seen == c.want {
		c.last = time.Now()
	}
}

func (c *counter) firstAt() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.first
}

func (c *counter) lastAt() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

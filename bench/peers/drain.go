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

	"github.com/outbox-relay/outbox-relay/internal/load"
)

// Rows of the backlog in one transaction. A single one of them all would be a
// case of its own: logical decoding has to spill it to disk.
const transactionRows = 100

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

// preload writes the backlog, of 1,000 keys in turn.
func (m *measurement) preload(ctx context.Context, p *phase) error {
	const keys = 1000
	columns := []string{"event_id", "aggregate_type", "aggregate_id", "event_type", "payload", "topic", "partition_key"}
	for done := 0; done < m.cfg.DrainRows; {
		n := min(transactionRows, m.cfg.DrainRows-done)
		events := make([]load.Event, n)
		for i := range events {
			id, err := uuid.NewV7()
			if err != nil {
				return fmt.Errorf("make an event id: %w", err)
			}
			number := done + i
			events[i] = load.Event{
				ID: id, Topic: p.topic, PayloadSize: m.cfg.PayloadBytes,
				Key: fmt.Sprintf("backlog-%04d", number%keys), Seq: int64(number/keys + 1),
			}
			p.ledger.Sending(events[i], time.Now())
		}
		rows := pgx.CopyFromSlice(n, func(i int) ([]any, error) {
			return events[i].Row("load", events[i].Key, "load.sent", events[i].Payload()), nil
		})
		if _, err := m.stage.pool.CopyFrom(ctx, pgx.Identifier{outboxTable.Schema, outboxTable.Table}, columns, rows); err != nil {
			return fmt.Errorf("write a backlog: %w", err)
		}
		for _, event := range events {
			p.ledger.Committed(event.ID, time.Now())
		}
		done += n
	}
	return nil
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

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/outbox-relay/outbox-relay/internal/load"
)

// leadIn is what is left out at the start: connections are made, statements
// prepared, and a relay notices that much is written.
const leadIn = time.Second

// writers measures how much can be written beside the contender, and waits until
// it has caught up.
func (m *measurement) writers(ctx context.Context) error {
	report, err := runPhase(ctx, m.stage, "writers", func(ctx context.Context, p *phase) error {
		return m.writeWithoutPause(ctx, p.topic, p.ledger)
	})
	m.result.add(report)
	return err
}

func (m *measurement) writeWithoutPause(ctx context.Context, topic string, ledger *load.Ledger) error {
	writer := &load.Writer{
		URL:    m.stage.databaseURL,
		Insert: load.InsertOutbox(outboxTable),
		Ledger: ledger,
		Topics: []string{topic},
		Keys:   m.cfg.Writers, KeyPrefix: "writer-",
		Conns:       m.cfg.Writers,
		PayloadSize: m.cfg.PayloadBytes,
	}
	writing, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- writer.Run(writing) }()
	err := m.watchWriters(ctx, ledger)
	stop()
	if writeErr := <-ended; err == nil {
		err = writeErr
	}
	return err
}

func (m *measurement) watchWriters(ctx context.Context, ledger *load.Ledger) error {
	if err := pause(ctx, leadIn); err != nil {
		return err
	}
	began := time.Now()
	first, _ := ledger.Counts(0)
	before, err := m.meter().read()
	if err != nil {
		return err
	}
	if err := pause(ctx, m.cfg.length()); err != nil {
		return err
	}
	last, _ := ledger.Counts(0)
	took := time.Since(began).Seconds()
	after, err := m.meter().read()
	events := last.Committed - first.Committed
	found := writersResult{
		Commits:   float64(events) / took,
		Published: float64(last.Consumed-first.Consumed) / took,
		Events:    events,
		Used:      after.minus(before),
	}
	m.result.Writers = found
	fmt.Fprintf(m.say, "  writers: %.0f commits/s, %.0f of them out\n", found.Commits, found.Published)
	return err
}

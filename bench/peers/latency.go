package main

import (
	"context"
	"fmt"
	"time"

	"github.com/outbox-relay/outbox-relay/internal/load"
)

// writer commits single rows of 128 keys on 16 connections.
func (m *measurement) writer(p *phase, prefix string, rate, count int) *load.Writer {
	return &load.Writer{
		URL:    m.stage.databaseURL,
		Insert: load.InsertOutbox(outboxTable),
		Ledger: p.ledger,
		Topics: []string{p.topic},
		Keys:   128, KeyPrefix: prefix,
		Conns: 16, Rate: float64(rate), Count: count,
		// The first second pays for what happens once: prepared statements,
		// the metadata of a new topic.
		Warmup:      rate,
		PayloadSize: m.cfg.PayloadBytes,
	}
}

func (m *measurement) rates(ctx context.Context) error {
	for _, rate := range m.cfg.Rates {
		if err := m.latency(ctx, rate); err != nil {
			return err
		}
	}
	return nil
}

// latency measures at a fixed rate of commits. The loop is open: a slow
// contender does not slow the writers, which would hide its slowness.
func (m *measurement) latency(ctx context.Context, rate int) error {
	var used usage
	var took time.Duration
	var writer *load.Writer
	report, err := runPhase(ctx, m.stage, fmt.Sprintf("rate-%d", rate), func(ctx context.Context, p *phase) error {
		writer = m.writer(p, "key-", rate, rate*(1+m.cfg.Seconds))
		before, err := m.meter().read()
		if err != nil {
			return err
		}
		began := time.Now()
		if err := writer.Run(ctx); err != nil {
			return err
		}
		took = time.Since(began)
		if err := p.settle(ctx); err != nil {
			return err
		}
		after, err := m.meter().read()
		used = after.minus(before)
		return err
	})
	if err != nil {
		return err
	}
	m.result.add(report)
	found := rateResult{
		Rate: rate, Reached: float64(report.Committed) / took.Seconds(),
		Insert: percentiles(report.FromInsert, rate), Commit: percentiles(report.FromCommit, rate),
		Behind: writer.Behind(), Events: report.Committed, Used: used,
	}
	m.result.Rates = append(m.result.Rates, found)
	fmt.Fprintf(m.say, "  %d/s (reached %.0f): %s ms from the INSERT, %s from the commit (p50 / p99 / p99.9); CPU %.2f s for 100,000\n",
		rate, found.Reached, found.Insert, found.Commit, per100k(used.Peer, found.Events))
	return nil
}

// percentiles leaves out the warm-up.
func percentiles(samples []time.Duration, warmup int) latency {
	p := load.Percentiles(samples[min(warmup, len(samples)):], 50, 99, 99.9)
	return latency{p[0], p[1], p[2]}
}

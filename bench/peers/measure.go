package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/outbox-relay/outbox-relay/internal/load"
	"github.com/outbox-relay/outbox-relay/internal/procfs"
)

// quiet is how long a contender is left alone before its rest is measured.
const quiet = 3 * time.Second

// measurement is that of one contender.
type measurement struct {
	cfg    config
	stage  *stage
	peer   peer
	result *result
	say    io.Writer
}

// measure runs a contender through everything.
func measure(ctx context.Context, cfg config, s *servers, dir string, c contender, say io.Writer) (r result, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("contender %s: %w", c.name, err)
		}
	}()
	st, err := newStage(ctx, s, dir, c.name)
	if err != nil {
		return result{}, err
	}
	defer func() { err = errors.Join(err, st.close()) }()
	m := &measurement{cfg: cfg, stage: st, result: &result{Name: c.name, Title: c.title, Alone: c.make == nil}, say: say}
	if c.make == nil {
		return *m.result, m.withoutPeer(ctx)
	}
	m.peer = c.make(cfg)
	m.result.Settings = m.peer.settings()
	if err := m.withPeer(ctx); err != nil {
		if ctx.Err() != nil {
			return result{}, err
		}
		return result{}, fmt.Errorf("%w; read its log, %s", err, st.log)
	}
	return *m.result, nil
}

func (m *measurement) withoutPeer(ctx context.Context) error {
	if err := m.stage.dropTrigger(ctx); err != nil {
		return err
	}
	if err := m.idle(ctx); err != nil {
		return err
	}
	topic := "nobody reads"
	return m.writeWithoutPause(ctx, topic, load.NewLedger())
}

func (m *measurement) withPeer(ctx context.Context) (err error) {
	if err := m.peer.prepare(ctx, m.stage); err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	began := time.Now()
	defer func() {
		// Of a contender that failed, only why it did is of interest.
		if endErr := m.end(); err == nil {
			err = endErr
		}
	}()
	if err := m.peer.start(ctx, m.stage); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	if err := m.warmUp(ctx, began); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{m.idle, m.rates, m.writers} {
		if err := m.step(ctx, step); err != nil {
			return err
		}
	}
	return m.drain(ctx)
}

// step carries out a measurement that ends when the contender does.
func (m *measurement) step(ctx context.Context, step func(context.Context) error) error {
	ctx, cancel := m.peer.current().watch(ctx)
	defer cancel()
	if err := step(ctx); err != nil {
		return err
	}
	return m.notePeak()
}

// end stops the contender and what it leaves in the database.
func (m *measurement) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var err error
	if m.peer.current() != nil {
		err = m.peer.Stop()
	}
	return errors.Join(err, m.peer.cleanUp(ctx, m.stage))
}

func (m *measurement) meter() meter {
	if m.peer == nil {
		return meter{postgres: m.stage.postgres}
	}
	return meter{m.peer.current(), m.stage.postgres}
}

// notePeak keeps the highest memory of all processes that the contender had.
func (m *measurement) notePeak() error {
	_, peak, err := procfs.Memory(m.peer.current().pid)
	m.result.PeakMemory = max(m.result.PeakMemory, peak)
	return err
}

// warmUp notes how long the first event took from the start, too.
func (m *measurement) warmUp(ctx context.Context, began time.Time) error {
	return m.step(ctx, func(ctx context.Context) error {
		first := newCounter(1)
		report, err := runPhase(ctx, m.stage, "warm-up", func(ctx context.Context, p *phase) error {
			p.consumer.OnRecord = first.onRecord
			return m.writer(p, "warm-", 0, m.cfg.Warmup).Run(ctx)
		})
		m.result.add(report)
		m.result.Startup = first.firstAt().Sub(began)
		fmt.Fprintf(m.say, "  warm, first event after %.1f s\n", m.result.Startup.Seconds())
		return err
	})
}

func (m *measurement) idle(ctx context.Context) error {
	if err := pause(ctx, quiet); err != nil {
		return err
	}
	began := time.Now()
	before, err := m.meter().read()
	if err != nil {
		return err
	}
	if err := pause(ctx, m.cfg.length()); err != nil {
		return err
	}
	after, err := m.meter().read()
	if err != nil {
		return err
	}
	used, took := after.minus(before), time.Since(began)
	m.result.IdleCPU = used.Peer.Seconds() / took.Seconds()
	m.result.IdlePostgres = used.Postgres.Seconds() / took.Seconds()
	if m.peer != nil {
		m.result.IdleMemory, _, err = procfs.Memory(m.peer.current().pid)
	}
	fmt.Fprintf(m.say, "  at rest: CPU %.2f %%, Postgres %.2f %%, %.0f MB\n", 100*m.result.IdleCPU, 100*m.result.IdlePostgres, megabytes(m.result.IdleMemory))
	return err
}

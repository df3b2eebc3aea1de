package main

import (
	"context"
	"log/slog"

	"golang.org/x/sync/errgroup"

	"github.com/outbox-relay/outbox-relay/relay"
)

// daemon is a relay with its start-up checks and its HTTP server.
type daemon struct {
	settings settings
	log      *slog.Logger

	// onListen, when set, is told where the HTTP server listens; onStart is
	// called when the checks have passed and the relay begins.
	onListen func(addr string)
	onStart  func()
}

// run relays until ctx ends, finishes what is under way, and returns nil. It
// fails when the port is taken, when the checks find a fault (all are in the
// error), and when the relay or the HTTP server fails.
func (d *daemon) run(ctx context.Context) error {
	s := d.settings
	server, err := listenHTTP(s.HTTPAddr)
	if err != nil {
		return err
	}
	defer server.Close()
	registry := newRegistry()
	engine, err := relay.New(s.Config, relay.WithLogger(d.log), relay.WithRegisterer(registry))
	if err != nil {
		return err
	}
	d.log.Info("relay starting",
		"version", version(), "table", s.Table, "brokers", s.Brokers,
		"mode", string(s.Notify), "order", string(s.Order), "http", server.Addr())
	if d.onListen != nil {
		d.onListen(server.Addr())
	}

	// The probes answer from before the checks, which may wait for the
	// servers, until after the last event: a relay that starts or drains is
	// alive. So the HTTP server does not end with ctx.
	group, running := errgroup.WithContext(context.WithoutCancel(ctx))
	serving, stopServing := context.WithCancel(running)
	group.Go(func() error { return server.Serve(serving, newHandler(engine.Health, registry)) })

	relaying, stopRelaying := context.WithCancel(running)
	defer stopRelaying()
	defer context.AfterFunc(ctx, stopRelaying)()
	group.Go(func() error {
		defer stopServing()
		if err := d.preflight(relaying); err != nil || relaying.Err() != nil {
			return err
		}
		if d.onStart != nil {
			d.onStart()
		}
		return engine.Run(relaying)
	})
	if err = group.Wait(); err != nil {
		d.log.Error("relay failed", "error", redact(err.Error()))
		return err
	}
	d.log.Info("relay stopped")
	return nil
}

// preflight returns the faults that keep the relay from starting, and logs the
// warnings. Being stopped meanwhile is no fault.
func (d *daemon) preflight(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, d.settings.StartupTimeout)
	defer cancel()
	findings := relay.Preflight(bounded, d.settings.Config, d.settings.RequireTopics, d.log)
	if ctx.Err() != nil {
		return nil
	}
	for _, warning := range findings.Warnings {
		d.log.Warn("start-up check", "warning", warning)
	}
	if len(findings.Faults) > 0 {
		return &faults{
			headline: "the relay cannot start",
			errs:     findings.Faults,
			next:     `"relay check" runs these checks again.`,
		}
	}
	return nil
}

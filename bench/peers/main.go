package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/outbox-relay/outbox-relay/internal/embedpg"
	"github.com/outbox-relay/outbox-relay/internal/realkafka"
)

func main() {
	embedpg.RunChild()
	realkafka.RunChild()
	runProcessChild()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	run := runAll
	if slices.Contains(os.Args[1:], naiveArgument) {
		run = func(ctx context.Context, _ io.Writer) error { return naiveEnvironment().run(ctx) }
	}
	if err := run(ctx, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		stop()
		os.Exit(1)
	}
}

// runAll measures the contenders one after the other and writes the report.
func runAll(ctx context.Context, say io.Writer) (err error) {
	cfg, err := readConfig()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "outbox-peers-")
	if err != nil {
		return err
	}
	failed := false
	defer func() {
		if !failed { // or its log is still needed
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	began := time.Now()
	fmt.Fprintln(say, "starting Postgres and Kafka")
	s, err := startServers(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	about, err := describe(ctx, s)
	if err != nil {
		return err
	}
	order := []contender{rehearsal}
	for _, name := range cfg.Peers {
		i := slices.IndexFunc(contenders, func(c contender) bool { return c.name == name })
		order = append(order, contenders[i])
	}
	var results []result
	for _, c := range order {
		fmt.Fprintln(say, c.title)
		r, err := measure(ctx, cfg, s, dir, c, say)
		if err != nil {
			failed = ctx.Err() == nil
			return err
		}
		results = append(results, r)
	}
	if err := writeReport(cfg, about, results[1:]); err != nil {
		return err
	}
	fmt.Fprintf(say, "wrote %s after %s\n", cfg.Out, time.Since(began).Round(time.Second))
	return nil
}

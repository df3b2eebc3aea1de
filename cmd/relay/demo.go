package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/outbox-relay/outbox-relay/internal/demo"
)

// demoFlags are what the demo takes from the command line. Servers come from
// flags alone: a demo must not write into the database that DATABASE_URL
// happens to name.
type demoFlags struct {
	duration    time.Duration
	rate        float64
	databaseURL string
	brokers     []string
	httpAddr    string
	json        bool
}

func (p *program) demoCommand() *cobra.Command {
	var flags demoFlags
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See the relay at work, on servers that it brings along",
		Long: `Writes orders with their events at a steady rate, relays them, consumes them from
Kafka, and reports whether any was lost or out of order, and how long they took
from commit to consumer. By default it starts a real Postgres of its own and an
in-memory Kafka, and leaves nothing behind but the Postgres binaries in a cache.

On servers of your own (--database-url, --brokers) it works in a schema and a
topic of its own, both named outbox demo and a number, and drops them at the end.

The relay takes its other settings from the environment, see "relay run --help".
Ctrl-C ends the demo early. It exits with 0 when all is well, with 1 when it
could not run, and with 3 when anything was lost or out of order.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.demo(cmd.Context(), flags) },
	}
	cmd.Flags().DurationVar(&flags.duration, "duration", 20*time.Second, "how long orders are written")
	cmd.Flags().Float64Var(&flags.rate, "rate", 200, "orders a second")
	cmd.Flags().StringVar(&flags.databaseURL, "database-url", "", "use this Postgres (needs the right to create a schema)")
	cmd.Flags().StringSliceVar(&flags.brokers, "brokers", nil, "use these Kafka brokers, host:port with commas")
	cmd.Flags().StringVar(&flags.httpAddr, "http", "127.0.0.1:0", "host:port of the relay's metrics and health; port 0 takes a free one, off none")
	cmd.Flags().BoolVar(&flags.json, "json", false, "write the result to stdout as one JSON object, and progress to stderr")
	return cmd
}

func (p *program) demo(ctx context.Context, flags demoFlags) (err error) {
	flags.brokers = trim(flags.brokers)
	s, err := p.demoSettings(flags)
	if err != nil {
		return err
	}
	progress := p.stdout
	if flags.json {
		progress = p.stderr
	}
	log := newLogger(p.stderr, s)
	stage, err := demo.Prepare(ctx, demo.Servers{DatabaseURL: flags.databaseURL, Brokers: flags.brokers}, p.stderr, log)
	if err != nil {
		return fmt.Errorf("prepare the demo: %w", err)
	}
	defer func() { err = errors.Join(err, stage.Close()) }()
	s.DatabaseURL, s.ListenURL, s.Brokers = stage.DatabaseURL, "", stage.Brokers
	s.Table = stage.Table.String()

	fmt.Fprintf(progress, "Orders go to schema %s, their events to topic %s, %g a second for %s.\n",
		stage.Table.Schema, stage.Topic, flags.rate, flags.duration)
	relay := &daemon{settings: s, log: log, onListen: func(addr string) {
		if addr != httpOff {
			fmt.Fprintf(progress, "The relay's metrics: http://%[1]s/metrics, its health: http://%[1]s/readyz\n", addr)
		}
	}}
	plan := demo.Plan{Rate: flags.rate, Duration: flags.duration, Display: newDisplay(progress)}
	summary, err := stage.Run(ctx, plan, func(ctx context.Context, ready func()) error {
		relay.onStart = ready
		return relay.run(ctx)
	})
	if err != nil {
		return fmt.Errorf("run the demo: %w", err)
	}
	return p.demoResult(summary, flags.json)
}

// demoSettings are those of the environment, but for what the demo decides.
func (p *program) demoSettings(flags demoFlags) (settings, error) {
	s, errs := parseSettings(p.env)
	s.HTTPAddr, s.RequireTopics = flags.httpAddr, nil
	// The relay's own lines would tear the display apart; warnings still show.
	if p.env["RELAY_LOG_LEVEL"] == "" {
		s.LogLevel = slog.LevelWarn
	}

	valid := s
	if valid.DatabaseURL = flags.databaseURL; valid.DatabaseURL == "" {
		valid.DatabaseURL = "postgres://embedded"
	}
	if valid.Brokers = flags.brokers; len(valid.Brokers) == 0 {
		valid.Brokers = []string{"embedded:9092"}
	}
	valid.ListenURL = ""
	for _, fault := range split(valid.Validate()) {
		errs = append(errs, flagNames(fault))
	}
	if flags.rate <= 0 || flags.rate > 100_000 {
		errs = append(errs, fmt.Errorf("--rate=%g: allowed are above 0 to 100000", flags.rate))
	}
	if flags.duration < 100*time.Millisecond || flags.duration > 24*time.Hour {
		errs = append(errs, fmt.Errorf("--duration=%s: allowed are 100ms to 24h", flags.duration))
	}
	return s, settingsError(errs)
}

// flagNames puts a fault in terms of the flags that stand for variables here.
func flagNames(fault error) error {
	return errors.New(strings.NewReplacer(
		"DATABASE_URL", "--database-url",
		"KAFKA_BROKERS", "--brokers",
		"RELAY_HTTP_ADDR", "--http",
	).Replace(fault.Error()))
}

// demoResult prints the summary. The JSON object is the last line of stdout.
func (p *program) demoResult(summary demo.Summary, asJSON bool) error {
	write := summary.WriteText
	if asJSON {
		write = summary.WriteJSON
	}
	if err := write(p.stdout); err != nil {
		return fmt.Errorf("write the summary: %w", err)
	}
	if summary.Broken() {
		return &exitError{exitFindings, fmt.Errorf("the relay lost %d events and delivered %d out of order", summary.Lost, summary.OutOfOrder)}
	}
	return nil
}

func newDisplay(w io.Writer) *demo.Display {
	display := &demo.Display{Out: w}
	if isTerminal(w) {
		display.Width = func() int {
			width, _, err := term.GetSize(int(w.(*os.File).Fd()))
			if err != nil {
				return 80
			}
			return width
		}
	}
	return display
}

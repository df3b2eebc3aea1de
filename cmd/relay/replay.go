package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outbox-relay/outbox-relay/relay"
)

// replayFlags are the flags as they were typed.
type replayFlags struct {
	topic, key, from, to, rate string
	fromID                     int64
	dryRun, yes                bool
}

func (p *program) replayCommand() *cobra.Command {
	var flags replayFlags
	cmd := &cobra.Command{
		Use:   "replay --topic TOPIC --from TIME --to TIME",
		Short: "Publish events again that were published already",
		Long: `Publishes events of a topic again that were published in a span of time, from
--from on and before --to: in the order of their ids, with their original key,
value and headers, and the header x-replayed-at (RFC 3339, UTC) besides. It
changes nothing in the database, so that it can be repeated, and no relay needs
to run. Discarded rows, which never were published, are left out.

The consumers get every event a second time and have to bear that. Begin with
--dry-run, which counts the events and shows the first and the last. Otherwise
it is confirmed on the terminal first, or with --yes.

When Kafka fails it ends with 1 and says how many were published and with which
--from-id to go on. It reads the settings of "relay run"; the role needs SELECT
on the outbox table and on outbox_relay_failure.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.replay(cmd, flags) },
	}
	cmd.Flags().StringVar(&flags.topic, "topic", "", "the topic; required")
	cmd.Flags().StringVar(&flags.from, "from", "", "published at this time or later, as in 2026-01-31T15:04:05Z; required")
	cmd.Flags().StringVar(&flags.to, "to", "", "published before this time; required")
	cmd.Flags().StringVar(&flags.key, "key", "", "only events with this partition key")
	cmd.Flags().Int64Var(&flags.fromID, "from-id", 0, "only rows from this id on, as a replay that failed says")
	cmd.Flags().StringVar(&flags.rate, "rate", "", "at most so many events a second, as in 100/s (default no limit)")
	cmd.Flags().BoolVar(&flags.dryRun, "dry-run", false, "count the events, show the first and the last, publish nothing")
	cmd.Flags().BoolVar(&flags.yes, "yes", false, "do not ask")
	return cmd
}

func (p *program) replay(cmd *cobra.Command, flags replayFlags) error {
	ctx := cmd.Context()
	replay, err := flags.parse(cmd)
	if err != nil {
		return err
	}
	if !flags.dryRun {
		if err := p.canConfirm(flags.yes); err != nil {
			return err
		}
	}
	s, err := loadSettings(p.env)
	if err != nil {
		return err
	}
	plan, err := replay.Plan(ctx, s.Config)
	if err != nil {
		return err
	}
	if err := p.describe(replay, plan); err != nil || flags.dryRun || plan.Events == 0 {
		return err
	}
	question := fmt.Sprintf("Publish %s to %s again?", events(plan.Events), cell(replay.Topic))
	if err := p.confirm(ctx, question, flags.yes); err != nil {
		return err
	}
	published, err := replay.Run(ctx, s.Config, newLogger(p.stderr, s))
	if stopped, ok := errors.AsType[*relay.ReplayError](err); ok {
		if ctx.Err() != nil {
			stopped.Err = errors.New("it was interrupted")
		}
		return fmt.Errorf("%w\nTo go on, repeat the command with --from-id=%d", stopped, stopped.Next.ID)
	}
	if err != nil {
		return err
	}
	return p.say("published %s again", events(published))
}

func (f replayFlags) parse(cmd *cobra.Command) (replay relay.Replay, err error) {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	replay.Topic, replay.FromID = f.topic, f.fromID
	if f.topic == "" {
		fault("--topic is required")
	}
	for _, flag := range []struct {
		name, text string
		at         *time.Time
	}{{"from", f.from, &replay.From}, {"to", f.to, &replay.To}} {
		if *flag.at, err = time.Parse(time.RFC3339, flag.text); err != nil {
			fault("--%s=%q: required is a time as in 2026-01-31T15:04:05Z or 2026-01-31T15:04:05+02:00", flag.name, flag.text)
		}
	}
	if len(errs) == 0 && !replay.From.Before(replay.To) {
		fault("--from=%s is not before --to=%s", f.from, f.to)
	}
	replay.Key = ifGiven(cmd, "key", f.key)
	if f.rate != "" {
		replay.Rate, err = strconv.ParseFloat(strings.TrimSuffix(f.rate, "/s"), 64)
		if err != nil || !(replay.Rate > 0 && replay.Rate <= 1e6) {
			fault("--rate=%q: allowed are above 0/s to 1000000/s", f.rate)
		}
	}
	if len(errs) > 0 {
		return replay, &exitError{exitUsage, &faults{headline: "wrong flags", errs: errs, next: `See "relay replay --help".`}}
	}
	return replay, nil
}

// describe prints what a replay comes to.
func (p *program) describe(replay relay.Replay, plan relay.ReplayPlan) error {
	if plan.Events == 0 {
		return p.say("no event of topic %s was published in that time", cell(replay.Topic))
	}
	line := func(name string, row relay.ReplayRow) string {
		return fmt.Sprintf("%s: row %d, event %s, key %s, published at %s",
			name, row.ID, row.EventID, cell(row.Key), row.PublishedAt.UTC().Format(time.RFC3339Nano))
	}
	return p.say("%s of topic %s\n%s\n%s", events(plan.Events), cell(replay.Topic), line("first", plan.First), line("last ", plan.Last))
}

func events(n int64) string {
	if n == 1 {
		return "1 event"
	}
	return fmt.Sprintf("%d events", n)
}

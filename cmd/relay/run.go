package main

import (
	"context"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func (p *program) runCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Relay events until stopped (the default)",
		Long: `Relays events until it is stopped. SIGTERM or SIGINT ends it in an orderly
way: what was handed to Kafka is finished and marked. A second signal ends it
at once, which loses nothing but may repeat events.

` + settingsHelp(),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.run(cmd.Context()) },
	}
}

func (p *program) run(ctx context.Context) error {
	s, err := loadSettings(p.env)
	if err != nil {
		return err
	}
	limitMemory(s)
	d := &daemon{settings: s, log: newLogger(p.stderr, s)}
	return d.run(ctx)
}

// limitMemory has garbage collected before there is as much of it as there is
// live memory: rows of 20 MB would double what they take. Above the limit, which
// is not a hard one, it is collected more often and no more. GOMEMLIMIT in the
// environment overrides it.
func limitMemory(s settings) {
	const base = 96 << 20
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(base + 8*int64(s.Workers)*int64(s.BatchBytes))
	}
}

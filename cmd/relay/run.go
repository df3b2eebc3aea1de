package main

import (
	"context"

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
	d := &daemon{settings: s, log: newLogger(p.stderr, s)}
	return d.run(ctx)
}

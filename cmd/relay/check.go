package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/outbox-relay/outbox-relay/relay"
)

func (p *program) checkCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Find what is wrong with the settings, the database and the topics",
		Long: `Looks at the settings, the database and the brokers as a start of the relay
does, changes nothing, and prints what it finds with what to do about it. It
exits with 0 when all is well, with 2 when the settings are wrong, and with 3
when there are findings: faults, which keep the relay from starting, or warnings.

It reads the same settings as "relay run"; see "relay run --help".`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.check(cmd.Context()) },
	}
}

func (p *program) check(ctx context.Context) error {
	s, err := loadSettings(p.env)
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, s.StartupTimeout)
	defer cancel()
	findings := relay.Preflight(bounded, s.Config, s.RequireTopics, newLogger(p.stderr, s))
	if ctx.Err() != nil {
		return fmt.Errorf("check: %w", context.Cause(ctx))
	}

	lines := []string{"ok       settings"}
	for _, found := range findings.OK {
		lines = append(lines, "ok       "+found)
	}
	for _, fault := range findings.Faults {
		lines = append(lines, "fault    "+fault.Error())
	}
	for _, warning := range findings.Warnings {
		lines = append(lines, "warning  "+warning)
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(p.stdout, redact(line)); err != nil {
			return err
		}
	}
	if len(findings.Faults)+len(findings.Warnings) > 0 {
		return &exitError{code: exitFindings}
	}
	return nil
}

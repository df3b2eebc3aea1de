package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
	"github.com/outbox-relay/outbox-relay/migrations"
)

func (p *program) migrateCommand() *cobra.Command {
	var onlyPrint bool
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Make the outbox table, the relay's trigger and its failure table, as far as missing",
		Long: `Makes the outbox table, the relay's trigger and its failure table, as far as they
are missing. An outbox table that the service made itself is checked and left as
it is. It can be run any number of times, also by several processes at once, and
takes its locks only for moments, so that writers are not held up.

It reads DATABASE_URL, whose role must own the table (or be allowed to make it),
and RELAY_TABLE; see "relay run --help". With --print it reads RELAY_TABLE only.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if onlyPrint {
				return p.printMigrations()
			}
			return p.migrate(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&onlyPrint, "print", false, "print the SQL for a migration tool of your own, and change nothing")
	return cmd
}

func (p *program) migrate(ctx context.Context) error {
	s, table, err := loadDatabaseSettings(p.env)
	if err != nil {
		return err
	}
	result, err := migrations.Up(ctx, s.DatabaseURL, table, migrations.Options{Logger: newLogger(p.stderr, s)})
	if err != nil {
		return err
	}
	return p.printResult(table, result)
}

func (p *program) printResult(table pgtable.Name, result migrations.Result) error {
	var lines []string
	if result.IndexBuilt {
		lines = append(lines, "built the index of unpublished rows")
	}
	for _, version := range result.Applied {
		lines = append(lines, fmt.Sprintf("applied migration %d", version))
	}
	if result.UpToDate() {
		lines = []string{"up to date, nothing to do"}
	}
	for _, line := range lines {
		if _, err := fmt.Fprintf(p.stdout, "%s: %s\n", table, line); err != nil {
			return err
		}
	}
	return nil
}

// printMigrations needs no database, so it is content with a RELAY_TABLE.
func (p *program) printMigrations() error {
	s, errs := parseSettings(p.env)
	table, err := pgtable.Parse(s.Table)
	if err != nil {
		errs = append(errs, fmt.Errorf("RELAY_TABLE: %w", err))
	}
	if err := settingsError(errs); err != nil {
		return err
	}
	return migrations.Print(p.stdout, table)
}

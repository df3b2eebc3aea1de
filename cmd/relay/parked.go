package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/outbox-relay/outbox-relay/internal/parked"
	"github.com/outbox-relay/outbox-relay/internal/pgerr"
)

func (p *program) parkedCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "parked",
		Short: "List, requeue and discard rows that could not be published",
		Long: `Shows and changes what became of rows that Kafka refused. All of it happens in
the database: no relay needs to run, and one that runs is woken. An ID is the id
of a row in the outbox table, or its event_id.

They read DATABASE_URL and RELAY_TABLE; see "relay run --help". The role needs
SELECT on the failure table outbox_relay_failure to list; to show, SELECT on the
outbox table too; to requeue and discard, UPDATE on the failure table and
UPDATE (published_at) on the outbox table as well.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return usageError(`which one: list, show, requeue or discard? See "relay parked --help"`)
		},
	}
	cmd.AddCommand(p.parkedListCommand(), p.parkedShowCommand(), p.parkedRequeueCommand(), p.parkedDiscardCommand())
	return cmd
}

// filterFlags are the flags by which records are chosen. A flag that is given
// with an empty text chooses those with an empty text.
type filterFlags struct {
	topic, key, kind string
}

func (f *filterFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.topic, "topic", "", "only rows of this topic")
	cmd.Flags().StringVar(&f.key, "key", "", "only rows with this partition key")
	cmd.Flags().StringVar(&f.kind, "kind", "", "only failures of this kind, such as row")
}

func (f *filterFlags) filter(cmd *cobra.Command) parked.Filter {
	return parked.Filter{
		Topic: ifGiven(cmd, "topic", f.topic),
		Key:   ifGiven(cmd, "key", f.key),
		Kind:  ifGiven(cmd, "kind", f.kind),
	}
}

// ifGiven tells an empty text from a flag that was not given.
func ifGiven(cmd *cobra.Command, flag, value string) *string {
	if !cmd.Flags().Changed(flag) {
		return nil
	}
	return &value
}

// withStore calls do with the failure table of the settings' database.
func (p *program) withStore(ctx context.Context, do func(*parked.Store) error) error {
	s, table, err := loadDatabaseSettings(p.env)
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, s.DatabaseURL)
	if err != nil {
		return pgerr.Connecting(err)
	}
	defer func() {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(bounded)
	}()
	store, err := parked.Open(ctx, conn, table)
	if err != nil {
		return err
	}
	return do(store)
}

func parseIDs(args []string) ([]parked.ID, error) {
	ids, err := parked.ParseIDs(args)
	if err != nil {
		return nil, &exitError{exitUsage, &faults{headline: "wrong IDs", errs: split(err)}}
	}
	return ids, nil
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/outbox-relay/outbox-relay/internal/parked"
)

func (p *program) parkedShowCommand() *cobra.Command {
	var asJSON, payload bool
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show all that is known of one such row",
		Long: `Shows the failure record of a row and what the outbox table says about it. The
payload is left out unless --payload asks for it, since not everybody may see it.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.parkedShow(cmd.Context(), args, asJSON, payload)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	cmd.Flags().BoolVar(&payload, "payload", false, "show the payload too")
	return cmd
}

func (p *program) parkedShow(ctx context.Context, args []string, asJSON, payload bool) error {
	ids, err := parseIDs(args)
	if err != nil {
		return err
	}
	return p.withStore(ctx, func(store *parked.Store) error {
		detail, err := store.Show(ctx, ids[0], payload)
		if err != nil {
			return err
		}
		if !asJSON {
			return writeDetail(p.stdout, detail)
		}
		encoder := json.NewEncoder(p.stdout)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		return encoder.Encode(detail)
	})
}

func writeDetail(w io.Writer, d parked.Detail) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name string, value any) { fmt.Fprintf(table, "%s\t%v\n", name, value) }
	line("row_id", d.RowID)
	line("event_id", d.EventID)
	line("topic", oneLine(d.Topic))
	line("partition_key", oneLine(d.PartitionKey))
	line("state", d.State)
	if d.Reason != nil {
		line("reason", oneLine(*d.Reason))
	}
	if d.ChangedBy != nil {
		line("changed", fmt.Sprintf("%s by %s", d.ChangedAt, oneLine(*d.ChangedBy)))
	}
	line("kind", oneLine(d.Kind))
	line("code", oneLine(d.Code))
	line("error", oneLine(d.Error))
	line("attempts", d.Attempts)
	line("first_failed_at", d.FirstFailedAt)
	line("last_failed_at", d.LastFailedAt)
	if d.State == parked.Waiting {
		line("next_attempt_at", d.NextAttemptAt)
	}
	if d.Row == nil {
		line("outbox row", "gone")
		return table.Flush()
	}
	line("event_type", oneLine(d.Row.EventType))
	line("aggregate", oneLine(d.Row.AggregateType)+" "+oneLine(d.Row.AggregateID))
	line("created_at", d.Row.CreatedAt)
	if d.Row.PublishedAt.Valid {
		line("published_at", d.Row.PublishedAt)
	}
	line("payload", fmt.Sprintf("%d bytes", d.Row.PayloadBytes))
	if err := table.Flush(); err != nil || d.Row.Payload == nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s\n", d.Row.Payload)
	return err
}

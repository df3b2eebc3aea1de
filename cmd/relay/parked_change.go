package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outbox-relay/outbox-relay/internal/parked"
)

func (p *program) parkedRequeueCommand() *cobra.Command {
	var (
		flags    filterFlags
		all, yes bool
	)
	cmd := &cobra.Command{
		Use:   "requeue ID… | --all",
		Short: "Have such rows tried again at once",
		Long: `Has rows tried again at once, with their attempts counted anew: those named by
their IDs, or with --all every row that waits or is parked, which --topic, --key
and --kind narrow. With IDs it is all or nothing: if one of them is unknown,
discarded, dead-lettered or published, each such is named and nothing is changed.
With --all, records whose rows are published or gone are left as they are.

More than one row is confirmed on the terminal first, or with --yes.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case all && len(args) > 0:
				return usageError("requeue takes IDs or --all, not both")
			case !all && len(args) == 0:
				return usageError(`requeue needs IDs, or --all; "relay parked list" shows them`)
			case !all && flags.filter(cmd).Narrows():
				return usageError("--topic, --key and --kind narrow --all: add it, or leave them out")
			case all:
				return p.requeueAll(cmd.Context(), flags.filter(cmd), yes)
			}
			return p.requeue(cmd.Context(), args, yes)
		},
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "every row that waits or is parked")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func (p *program) requeueAll(ctx context.Context, filter parked.Filter, yes bool) error {
	if err := p.canConfirm(yes); err != nil {
		return err
	}
	return p.withStore(ctx, func(store *parked.Store) error {
		count, err := store.Count(ctx, filter)
		if err != nil {
			return err
		}
		if count > 0 {
			if err := p.confirm(ctx, fmt.Sprintf("Requeue %s?", rows(count)), yes); err != nil {
				return err
			}
		}
		n, left, err := store.RequeueAll(ctx, filter)
		if err != nil {
			return err
		}
		if left > 0 {
			return p.say("requeued %s, left %s alone that %s published or gone: discard closes their records", rows(n), rows(left), are(left))
		}
		return p.say("requeued %s", rows(n))
	})
}

func (p *program) requeue(ctx context.Context, args []string, yes bool) error {
	ids, err := parseIDs(args)
	if err != nil {
		return err
	}
	if len(ids) > 1 {
		if err := p.confirm(ctx, fmt.Sprintf("Requeue %s?", rows(int64(len(ids)))), yes); err != nil {
			return err
		}
	}
	return p.withStore(ctx, func(store *parked.Store) error {
		n, err := store.Requeue(ctx, ids)
		if err != nil {
			return err
		}
		return p.say("requeued %s", rows(n))
	})
}

func (p *program) parkedDiscardCommand() *cobra.Command {
	var (
		reason string
		yes    bool
	)
	cmd := &cobra.Command{
		Use:   "discard ID… --reason TEXT",
		Short: "Give such rows up",
		Long: `Gives rows up: they are never published. They are marked in the outbox table as
if they had been, so that no relay looks at them again, and their failure records
keep the reason, the time and the database user. It is all or nothing, as with
requeue, and cannot be undone.

More than one row is confirmed on the terminal first, or with --yes.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError(`discard needs IDs; "relay parked list" shows them`)
			}
			if strings.TrimSpace(reason) == "" {
				return usageError("discard needs a --reason, which is kept with the record")
			}
			return p.discard(cmd.Context(), args, reason, yes)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for those who look at it later; required")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func (p *program) discard(ctx context.Context, args []string, reason string, yes bool) error {
	ids, err := parseIDs(args)
	if err != nil {
		return err
	}
	if len(ids) > 1 {
		if err := p.confirm(ctx, fmt.Sprintf("Discard %s for good?", rows(int64(len(ids)))), yes); err != nil {
			return err
		}
	}
	return p.withStore(ctx, func(store *parked.Store) error {
		n, err := store.Discard(ctx, ids, reason)
		if err != nil {
			return err
		}
		return p.say("discarded %s", rows(n))
	})
}

func rows(n int64) string {
	if n == 1 {
		return "1 row"
	}
	return fmt.Sprintf("%d rows", n)
}

func are(n int64) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// say prints a line of the result.
func (p *program) say(format string, args ...any) error {
	_, err := fmt.Fprintf(p.stdout, format+"\n", args...)
	return err
}

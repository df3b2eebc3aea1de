package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/outbox-relay/outbox-relay/internal/parked"
)

func (p *program) parkedListCommand() *cobra.Command {
	var (
		flags     filterFlags
		states    []string
		olderThan time.Duration
		limit     int64
		asJSON    bool
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the rows that could not be published",
		Long: `Lists the rows that could not be published, lowest row id first. By default
these are the ones still open: waiting, which are tried again by themselves, and
parked, which wait for you. The others are history: dead_lettered, discarded.

--json prints an array of objects with the names of the failure table's columns.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter := flags.filter(cmd)
			filter.States, filter.OlderThan, filter.Limit = states, olderThan, limit
			if err := checkListFlags(filter); err != nil {
				return err
			}
			return p.parkedList(cmd.Context(), filter, asJSON)
		},
	}
	flags.add(cmd)
	cmd.Flags().StringSliceVar(&states, "state", nil, "only these states: "+strings.Join(parked.States, ", ")+" (default waiting,parked)")
	cmd.Flags().DurationVar(&olderThan, "older-than", 0, "only rows that failed first so long ago, such as 90m or 48h")
	cmd.Flags().Int64Var(&limit, "limit", 0, "at most so many; 0 lists all")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func checkListFlags(filter parked.Filter) error {
	var errs []error
	for _, state := range filter.States {
		if !slices.Contains(parked.States, state) {
			errs = append(errs, fmt.Errorf("--state=%q: allowed are %s", state, strings.Join(parked.States, ", ")))
		}
	}
	if filter.OlderThan < 0 {
		errs = append(errs, fmt.Errorf("--older-than=%s: allowed are durations from 0s", filter.OlderThan))
	}
	if filter.Limit < 0 {
		errs = append(errs, fmt.Errorf("--limit=%d: allowed are numbers from 0", filter.Limit))
	}
	if len(errs) > 0 {
		return &exitError{exitUsage, &faults{headline: "wrong flags", errs: errs}}
	}
	return nil
}

func (p *program) parkedList(ctx context.Context, filter parked.Filter, asJSON bool) error {
	return p.withStore(ctx, func(store *parked.Store) error {
		write := writeRecords
		if asJSON {
			write = writeRecordsJSON
		}
		out := bufio.NewWriter(p.stdout)
		if err := write(out, store.List(ctx, filter)); err != nil {
			_ = out.Flush()
			return err
		}
		return out.Flush()
	})
}

// page is how many lines share their column widths. The tab writer keeps them all
// in memory until then.
const page = 500

func writeRecords(w io.Writer, records iter.Seq2[parked.Record, error]) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	n := 0
	for r, err := range records {
		if err != nil {
			_ = table.Flush()
			return err
		}
		if n == 0 {
			fmt.Fprintln(table, "ROW\tSTATE\tKIND\tCODE\tATTEMPTS\tFIRST FAILED\tNEXT ATTEMPT\tTOPIC\tKEY\tERROR")
		}
		next := r.NextAttemptAt.String()
		if r.State != parked.Waiting {
			next = "-"
		}
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", r.RowID, r.State, cell(r.Kind), cell(r.Code), r.Attempts,
			seconds(r.FirstFailedAt), next, cell(r.Topic), cell(r.PartitionKey), cell(r.Error))
		if n++; n%page == 0 {
			if err := table.Flush(); err != nil {
				return err
			}
		}
	}
	if n == 0 {
		fmt.Fprintln(table, "no rows")
	}
	return table.Flush()
}

// seconds leaves out the fractions, which a table has no room for.
func seconds(t parked.Time) string {
	if text := t.String(); !t.Valid || t.InfinityModifier != 0 {
		return text
	}
	return t.Time.UTC().Format(time.RFC3339)
}

// oneLine makes a text fit for a terminal: on one line, and without what a
// terminal would obey. Topics, keys and errors hold whatever a writer put there.
func oneLine(text string) string {
	if text == "" || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.QuoteToGraphic(text)
	}
	return text
}

// cell is oneLine cut to a width that leaves room for other columns.
func cell(text string) string {
	const widest = 60
	text = oneLine(text)
	if runes := []rune(text); len(runes) > widest {
		return string(runes[:widest-1]) + "…"
	}
	return text
}

func writeRecordsJSON(w io.Writer, records iter.Seq2[parked.Record, error]) error {
	before := "[\n"
	for r, err := range records {
		if err != nil {
			return err
		}
		object, err := json.Marshal(r)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "%s  %s", before, object); err != nil {
			return err
		}
		before = ",\n"
	}
	if before == "[\n" {
		_, err := fmt.Fprintln(w, "[]")
		return err
	}
	_, err := fmt.Fprint(w, "\n]\n")
	return err
}

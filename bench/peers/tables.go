package main

import (
	"fmt"
	"strings"
	"time"
)

// table is a Markdown table.
type table struct{ strings.Builder }

// newTable starts one with its head. Figures stand to the right.
func newTable(head ...string) *table {
	t := &table{}
	t.row(head...)
	t.WriteString("|---" + strings.Repeat("|---:", len(head)-1) + "|\n")
	return t
}

func (t *table) row(cells ...string) { t.WriteString("| " + strings.Join(cells, " | ") + " |\n") }

func latencyTable(cfg config, results []result, of func(rateResult) latency) string {
	return rateTable("p50 / p99 / p99.9, ms", cfg, results, func(at rateResult) string {
		cell := of(at).String()
		if at.missed() {
			cell += fmt.Sprintf(" (at %.0f/s)", at.Reached)
		}
		return cell
	})
}

func (l latency) String() string {
	return fmt.Sprintf("%s / %s / %s", short(l.P50), short(l.P99), short(l.P999))
}

func fromInsert(at rateResult) latency { return at.Insert }

func fromCommit(at rateResult) latency { return at.Commit }

func behindTable(cfg config, results []result) string {
	return rateTable("latest INSERT, ms", cfg, results, func(at rateResult) string { return short(at.Behind) })
}

// rateTable has a line for each contender and a column for each rate.
func rateTable(corner string, cfg config, results []result, cell func(rateResult) string) string {
	cells := []string{corner}
	for _, rate := range cfg.Rates {
		cells = append(cells, fmt.Sprintf("%d/s", rate))
	}
	t := newTable(cells...)
	for _, r := range peersOf(results) {
		cells := []string{r.Title}
		for _, at := range r.Rates {
			cells = append(cells, cell(at))
		}
		t.row(cells...)
	}
	return t.String()
}

// short has three digits at least, and no more decimals than mean something.
func short(d time.Duration) string {
	if ms := milliseconds(d); ms < 100 {
		return fmt.Sprintf("%.1f", ms)
	}
	return fmt.Sprintf("%.0f", milliseconds(d))
}

func workTable(results []result) string {
	t := newTable("", "backlog, events/s", "first of it after, s", "writers, commits/s", "events out meanwhile, /s", "start to first event, s")
	for _, r := range results {
		if r.Alone {
			t.row(r.Title, "", "", fmt.Sprintf("%.0f", r.Writers.Commits), "", "")
			continue
		}
		t.row(r.Title,
			fmt.Sprintf("%.0f", r.Drain.rate()), fmt.Sprintf("%.2f", r.Drain.Startup.Seconds()),
			fmt.Sprintf("%.0f", r.Writers.Commits), fmt.Sprintf("%.0f", r.Writers.Published),
			fmt.Sprintf("%.1f", r.Startup.Seconds()))
	}
	return t.String()
}

func memoryTable(results []result) string {
	t := newTable("", "memory at rest, MB", "at most, MB", "CPU at rest, % of a core", "Postgres's, %")
	for _, r := range results {
		own := []string{"", "", ""}
		if !r.Alone {
			own = []string{
				fmt.Sprintf("%.0f", megabytes(r.IdleMemory)), fmt.Sprintf("%.0f", megabytes(r.PeakMemory)),
				fmt.Sprintf("%.2f", 100*r.IdleCPU),
			}
		}
		t.row(append(append([]string{r.Title}, own...), fmt.Sprintf("%.2f", 100*r.IdlePostgres))...)
	}
	return t.String()
}

// cpuTable shows the contender's own time and Postgres's, of which the writers'
// commits are a part that is the same for all.
func cpuTable(cfg config, results []result) string {
	cells := []string{"own + Postgres's, s"}
	for _, rate := range cfg.Rates {
		cells = append(cells, fmt.Sprintf("%d/s", rate))
	}
	t := newTable(append(cells, "writers without pause", "backlog")...)
	cell := func(used usage, events int) string {
		return fmt.Sprintf("%.2f + %.2f", per100k(used.Peer, events), per100k(used.Postgres, events))
	}
	for _, r := range results {
		cells := []string{r.Title}
		if r.Alone {
			cells = append(cells, make([]string, len(cfg.Rates))...)
		}
		for _, at := range r.Rates {
			cells = append(cells, cell(at.Used, at.Events))
		}
		cells = append(cells, cell(r.Writers.Used, r.Writers.Events))
		if r.Alone {
			cells = append(cells, "")
		} else {
			cells = append(cells, cell(r.Drain.Used, r.Drain.Events))
		}
		t.row(cells...)
	}
	return t.String()
}

func verdictTable(results []result) string {
	t := newTable("", "events", "lost", "repeated", "out of order")
	for _, r := range peersOf(results) {
		t.row(r.Title, fmt.Sprint(r.Events), fmt.Sprint(r.Lost), fmt.Sprint(r.Duplicates), fmt.Sprint(r.OutOfOrder))
	}
	return t.String()
}

package main

import (
	"fmt"
	"slices"
)

// ratio compares one figure with Debezium's.
type ratio struct {
	what string
	// of returns the figure, or 0 when it was not measured.
	of func(result) float64
	// more tells that the higher figure is the better one.
	more bool
}

func ratios(cfg config) []ratio {
	var all []ratio
	for _, rate := range cfg.Rates {
		all = append(all,
			ratio{what: fmt.Sprintf("p99 from the commit at %d/s, ms", rate), of: func(r result) float64 {
				return milliseconds(r.at(rate).Commit.P99)
			}},
			ratio{what: fmt.Sprintf("p99 from the INSERT at %d/s, ms", rate), of: func(r result) float64 {
				return milliseconds(r.at(rate).Insert.P99)
			}})
	}
	all = append(all,
		ratio{"backlog, events/s", func(r result) float64 { return r.Drain.rate() }, true},
		ratio{"writers, commits/s", func(r result) float64 { return r.Writers.Commits }, true},
		ratio{"memory at most, MB", func(r result) float64 { return megabytes(r.PeakMemory) }, false},
	)
	for _, rate := range cfg.Rates {
		all = append(all, ratio{what: fmt.Sprintf("own CPU at %d/s, s for 100,000 events", rate), of: func(r result) float64 {
			return per100k(r.at(rate).Used.Peer, r.at(rate).Events)
		}})
	}
	return append(all, ratio{"own CPU over a backlog, s for 100,000 events", func(r result) float64 {
		return per100k(r.Drain.Used.Peer, r.Drain.Events)
	}, false})
}

// ratioTable holds this relay against the best that any of Debezium's settings
// came to, for each figure its own. It is empty when one of the two did not run.
func ratioTable(cfg config, results []result) string {
	own := slices.IndexFunc(results, func(r result) bool { return r.Name == "relay" })
	if own < 0 || !slices.ContainsFunc(results, isDebezium) {
		return ""
	}
	t := newTable("", "this relay", "Debezium's best", "with", "ratio")
	for _, ratio := range ratios(cfg) {
		best, setting := bestDebezium(results, ratio)
		figure := ratio.of(results[own])
		share := "-"
		if best > 0 {
			share = fmt.Sprintf("%.2f", figure/best)
		}
		t.row(ratio.what, figureText(figure), figureText(best), setting, share)
	}
	return t.String()
}

func bestDebezium(results []result, r ratio) (best float64, setting string) {
	for _, candidate := range results {
		figure := r.of(candidate)
		if !isDebezium(candidate) {
			continue
		}
		if setting == "" || r.more == (figure > best) {
			best, setting = figure, candidate.Title
		}
	}
	return best, setting
}

func figureText(figure float64) string {
	if figure < 100 {
		return fmt.Sprintf("%.1f", figure)
	}
	return fmt.Sprintf("%.0f", figure)
}

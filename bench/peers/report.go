package main

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"time"
)

//go:embed report.md.tmpl
var reportText string

var reportTemplate = template.Must(template.New("report").Parse(reportText))

// writeReport writes the report and its plots into the folder of the settings.
func writeReport(cfg config, a about, results []result) error {
	if err := os.MkdirAll(cfg.Out, 0o755); err != nil {
		return fmt.Errorf("make the folder of the report: %w", err)
	}
	text, err := render(cfg, a, results)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(cfg.Out, "peers.md"), []byte(text), 0o644); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if err := plotLatency(filepath.Join(cfg.Out, "latency.svg"), cfg, results); err != nil {
		return fmt.Errorf("plot latency: %w", err)
	}
	if err := plotDrain(filepath.Join(cfg.Out, "drain.svg"), results); err != nil {
		return fmt.Errorf("plot drain: %w", err)
	}
	return nil
}

// render returns the report as Markdown.
func render(cfg config, a about, results []result) (string, error) {
	var b strings.Builder
	err := reportTemplate.Execute(&b, map[string]any{
		"Config":    cfg,
		"About":     a,
		"Insert":    latencyTable(cfg, results, fromInsert),
		"Commit":    latencyTable(cfg, results, fromCommit),
		"Behind":    behindTable(cfg, results),
		"Work":      workTable(results),
		"Memory":    memoryTable(results),
		"CPU":       cpuTable(cfg, results),
		"Verdict":   verdictTable(results),
		"Ratios":    ratioTable(cfg, results),
		"Settings":  settings(results),
		"Command":   cfg.command(),
		"Rates":     join(cfg.Rates),
		"Shortened": cfg.shortened(),
	})
	if err != nil {
		return "", fmt.Errorf("render the report: %w", err)
	}
	return b.String(), nil
}

// settings returns those of each contender, and of the three Debeziums once.
func settings(results []result) string {
	var b strings.Builder
	var last string
	for _, r := range peersOf(results) {
		title := r.Title
		if isDebezium(r) {
			title = "Debezium"
		}
		if title != last {
			fmt.Fprintf(&b, "### %s\n\n%s\n", title, r.Settings)
		}
		last = title
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// peersOf leaves out the run of the writers alone.
func peersOf(results []result) []result {
	var peers []result
	for _, r := range results {
		if !r.Alone {
			peers = append(peers, r)
		}
	}
	return peers
}

func isDebezium(r result) bool { return strings.HasPrefix(r.Name, "debezium-") }

func join(numbers []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(numbers), " ", ", "), "[]")
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func megabytes(n int64) float64 { return float64(n) / (1 << 20) }

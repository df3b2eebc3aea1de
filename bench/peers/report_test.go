package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

// sample is a run of two rates with figures that are easy to compare.
func sample() (config, []result) {
	cfg := config{Rates: []int{100, 1000}, Seconds: 15, DrainRows: 300_000, Warmup: 30_000, Writers: 64, PayloadBytes: 128}
	peer := func(name, title string, factor int) result {
		times := func(d time.Duration) time.Duration { return time.Duration(int64(d) * int64(factor)) }
		return result{
			Name: name, Title: title, Settings: "settings of " + name,
			PeakMemory: int64(factor) * 30 << 20,
			Rates: []rateResult{
				{Rate: 100, Reached: 100, Insert: latency{times(2 * ms), times(5 * ms), times(6 * ms)}, Commit: latency{times(ms), times(4 * ms), times(5 * ms)}, Events: 1000, Used: usage{Peer: times(100 * ms)}},
				{Rate: 1000, Reached: 800, Insert: latency{3 * ms, 200 * ms, 300 * ms}, Behind: 1500 * ms, Events: 10_000, Used: usage{Peer: times(500 * ms), Postgres: time.Second}},
			},
			Writers: writersResult{Commits: 9000, Published: 8500, Events: 90_000, Used: usage{Peer: 900 * ms}},
			Drain:   drainResult{Events: 300_000, Startup: 100 * ms, Took: times(10 * time.Second), Used: usage{Peer: 3 * time.Second}},
			verdict: verdict{Events: 400_000, Duplicates: factor - 1},
		}
	}
	return cfg, []result{
		{Name: "none", Title: "no relay", Alone: true, Writers: writersResult{Commits: 9500}},
		peer("relay", "this relay", 1),
		peer("debezium-10", "Debezium, poll 10 ms", 4),
		peer("debezium-1", "Debezium, poll 1 ms", 3),
	}
}

func TestReportShowsEachFigure(t *testing.T) {
	t.Parallel()
	cfg, results := sample()
	report, err := render(cfg, about{Machine: "2 cores"}, results)
	if err != nil {
		t.Fatal(err)
	}
	for what, line := range map[string]string{
		"latency, and a rate that was missed": "| this relay | 2.0 / 5.0 / 6.0 | 3.0 / 200 / 300 (at 800/s) |",
		"latency from the commit":             "| this relay | 1.0 / 4.0 / 5.0 | 0.0 / 0.0 / 0.0 (at 800/s) |",
		"how late the writers were":           "| this relay | 0.0 | 1500 |",
		"throughput":                          "| this relay | 30000 | 0.10 | 9000 | 8500 | 0.0 |",
		"the writers alone":                   "| no relay |  |  | 9500 |  |  |",
		"CPU for 100,000 events":              "| this relay | 10.00 + 0.00 | 5.00 + 10.00 | 1.00 + 0.00 | 1.00 + 0.00 |",
		"faults":                              "| Debezium, poll 10 ms | 400000 | 0 | 3 | 0 |",
		"the best where less is better":       "| p99 from the INSERT at 100/s, ms | 5.0 | 15.0 | Debezium, poll 1 ms | 0.33 |",
		"the best where more is better":       "| backlog, events/s | 30000 | 10000 | Debezium, poll 1 ms | 3.00 |",
		"the machine":                         "| machine | 2 cores |",
	} {
		if !strings.Contains(report, line+"\n") {
			t.Errorf("%s: the report has no line %q", what, line)
		}
	}
	if strings.Count(report, "### Debezium\n") != 1 {
		t.Error("Debezium's settings are not there exactly once")
	}
	if strings.Contains(report, "shortened") {
		t.Error("a full run is called shortened")
	}
}

func TestReportOfOneContenderComparesNothing(t *testing.T) {
	t.Parallel()
	cfg, results := sample()
	cfg.Seconds = 3
	report, err := render(cfg, about{}, results[1:2])
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(report, "Debezium's best") {
		t.Error("it is compared with what did not run")
	}
	if !strings.Contains(report, "shortened") {
		t.Error("a short run is not called so")
	}
}

func TestReportIsWrittenWithItsPlots(t *testing.T) {
	t.Parallel()
	cfg, results := sample()
	cfg.Out = filepath.Join(t.TempDir(), "made")
	if err := writeReport(cfg, about{}, results); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"latency.svg", "drain.svg"} {
		plot, err := os.ReadFile(filepath.Join(cfg.Out, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"<svg", "this relay", "Debezium, poll 1 ms"} {
			if !strings.Contains(string(plot), want) {
				t.Errorf("%s does not hold %q", name, want)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(cfg.Out, "peers.md")); err != nil {
		t.Error(err)
	}
}

func TestSettingsAreChecked(t *testing.T) {
	t.Parallel()
	good, _ := sample()
	tests := map[string]struct {
		change func(*config)
		want   string
	}{
		"what is sound":       {func(*config) {}, ""},
		"no such contender":   {func(c *config) { c.Peers = []string{"relay", "rely"} }, `PEERS has "rely"`},
		"no length":           {func(c *config) { c.Seconds = 0 }, "PEERS_SECONDS"},
		"one rate is nothing": {func(c *config) { c.Rates = []int{100, 0} }, "PEERS_RATES"},
		"no backlog":          {func(c *config) { c.DrainRows = -1 }, "PEERS_DRAIN_ROWS"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := good
			test.change(&cfg)
			err := cfg.validate()
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

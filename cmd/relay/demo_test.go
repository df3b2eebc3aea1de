package main

import (
	"context"
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-relay/outbox-relay/internal/demo"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

func TestDemoEndsByItselfWithItsResult(t *testing.T) {
	t.Parallel()
	got := relayCommand(t, variables{}, "demo", "--duration=2s", "--rate=50", "--json")
	got.wants(t, exitOK, "http://127.0.0.1:", "/metrics")

	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	var fields map[string]float64
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &fields); err != nil {
		t.Fatalf("the last line of stdout is no JSON object: %v\n%s", err, got.stdout)
	}
	for name, want := range map[string]float64{"published": 100, "consumed": 100, "lost": 0, "duplicates": 0, "out_of_order": 0} {
		if value, there := fields[name]; !there || value != want {
			t.Errorf("%s is %v, want %v", name, value, want)
		}
	}
	if len(fields) != 7 || fields["p99_ms"] < fields["p50_ms"] || fields["p99_ms"] == 0 {
		t.Errorf("fields %v: want seven, with percentiles", fields)
	}
}

func TestDemoOnServersOfTheUserLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	database, brokers := testenv.Database(t), testenv.Brokers(t)
	got := relayCommand(t, variables{}, "demo", "--duration=1s", "--rate=20", "--http=off",
		"--database-url="+database, "--brokers="+strings.Join(brokers, ","))
	got.wants(t, exitOK, "published           20", "lost                 0", "out of order         0", "p99")
	if password, set := mustParse(t, database).User.Password(); set && strings.Contains(got.stdout+got.stderr, password) {
		t.Error("the password is in the output")
	}

	var schemas int
	if err := testenv.Pool(t, database).QueryRow(t.Context(), "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'outbox_demo%'").Scan(&schemas); err != nil {
		t.Fatal(err)
	}
	if schemas != 0 {
		t.Error("a schema is left behind")
	}
	topic := regexp.MustCompile(`outbox-demo-\w+\.order\.placed`).FindString(got.stdout)
	if topic == "" {
		t.Fatal("the output does not name the topic")
	}
	kafka, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer kafka.Close()
	// A real broker deletes a topic some time after it said so.
	testenv.Eventually(t, "the topic is gone", func() bool {
		topics, err := kadm.NewClient(kafka).ListTopics(t.Context())
		return err == nil && !topics.Has(topic)
	})
}

func TestDemoStoppedEarlyStillAccountsForItsEvents(t *testing.T) {
	t.Parallel()
	database := testenv.Database(t)
	ctx, stop := context.WithCancel(t.Context())
	running := startCommand(ctx, variables{}, "demo", "--duration=1h", "--database-url="+database)
	testenv.Eventually(t, "orders are written", func() bool {
		return strings.Contains(running.stdout.String(), "committed")
	})
	stop()
	running.wait().wants(t, exitOK, "published", "lost                 0")
}

func TestDemoThatCannotStartSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		args []string
		want []string
	}{
		{"no database there", []string{"--database-url=postgres://u:" + secret + "@" + closedPort(t) + "/x"}, []string{"prepare the demo", "connect"}},
		{"an address that is taken", []string{"--http=" + takenPort(t), "--database-url=" + testenv.Database(t)}, []string{"the port is in use", "--http"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := relayCommand(t, variables{}, append([]string{"demo"}, tt.args...)...)
			got.wants(t, exitRuntime, tt.want...)
			if strings.Contains(got.stderr, secret) {
				t.Errorf("the password is in the output:\n%s", got.stderr)
			}
		})
	}
}

func TestDemoReportsLossAndDisorder(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		summary demo.Summary
		code    int
	}{
		{"all is well", demo.Summary{Published: 5, Consumed: 5}, exitOK},
		{"repeats are allowed", demo.Summary{Published: 5, Consumed: 5, Duplicates: 2}, exitOK},
		{"loss", demo.Summary{Published: 5, Consumed: 4, Lost: 1}, exitFindings},
		{"disorder", demo.Summary{Published: 5, Consumed: 5, OutOfOrder: 1}, exitFindings},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			out := &testenv.Output{}
			p := &program{stdout: out, stderr: out}
			if code := report(out, p.demoResult(tt.summary, false)); code != tt.code {
				t.Errorf("exit code %d, want %d\n%s", code, tt.code, out)
			}
		})
	}
}

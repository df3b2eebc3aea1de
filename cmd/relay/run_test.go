package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// runningRelay is "relay run" under way, with the address of its HTTP server.
type runningRelay struct {
	*command
	addr string
}

// startRelay starts "relay run", which stop asks to end.
func startRelay(t *testing.T, env variables) (running *runningRelay, stop context.CancelFunc) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	running = &runningRelay{command: startCommand(ctx, env, "run")}
	testenv.Eventually(t, "the relay says where it listens", func() bool {
		running.addr, _ = running.logged("relay starting")["http"].(string)
		return running.addr != ""
	})
	return running, stop
}

// logged returns the first record of the log with the message.
func (r *runningRelay) logged(message string) map[string]any {
	scanner := bufio.NewScanner(strings.NewReader(r.stderr.String()))
	for scanner.Scan() {
		var record map[string]any
		if json.Unmarshal(scanner.Bytes(), &record) == nil && record["msg"] == message {
			return record
		}
	}
	return nil
}

// probe waits until the path answers with the status.
func (r *runningRelay) probe(t *testing.T, path string, status int) {
	t.Helper()
	testenv.Eventually(t, fmt.Sprintf("%s answers with %d", path, status), func() bool {
		got, _ := get(t, "http://"+r.addr+path)
		return got == status
	})
}

func TestRunRelaysUntilStopped(t *testing.T) {
	t.Parallel()
	env := newEnvironment(t)
	topic := testenv.Topic(t, testenv.Brokers(t), 3)
	running, stop := startRelay(t, env)
	starting := running.logged("relay starting")
	if starting["table"] != "public.outbox_event" || starting["mode"] != "adaptive" || starting["version"] == "" || starting["brokers"] == nil {
		t.Errorf("the first line lacks something: %v", starting)
	}

	pool := testenv.Pool(t, env["DATABASE_URL"])
	testenv.Insert(t, pool, testenv.Sequence(topic, 30, "a", "b", "c")...)
	testenv.Consume(t, testenv.Brokers(t), topic).WaitFor(t, 30)
	running.probe(t, "/readyz", 200)
	testenv.Eventually(t, "the metrics count the events", func() bool {
		_, metrics := get(t, "http://"+running.addr+"/metrics")
		return strings.Contains(metrics, fmt.Sprintf("outbox_relay_events_published_total{topic=%q} 30\n", topic))
	})

	stop()
	running.wait().wants(t, exitOK, "relay stopped")
	var unpublished int
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM outbox_event WHERE published_at IS NULL").Scan(&unpublished); err != nil {
		t.Fatal(err)
	}
	if unpublished != 0 {
		t.Errorf("%d rows are not marked after an orderly stop", unpublished)
	}
}

// Probes must be answered for as long as there is work: an orchestrator kills
// what does not answer.
func TestRunAnswersProbesWhileItDrains(t *testing.T) {
	t.Parallel()
	kafka := testenv.FakeKafka(t)
	topic := testenv.Topic(t, kafka.ListenAddrs(), 1)
	env := newEnvironment(t).with("KAFKA_BROKERS", strings.Join(kafka.ListenAddrs(), ","))
	held, release := make(chan struct{}), make(chan struct{})
	kafka.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		kafka.SleepControl(func() {
			close(held)
			<-release
		})
		return nil, nil, false
	})

	running, stop := startRelay(t, env)
	pool := testenv.Pool(t, env["DATABASE_URL"])
	testenv.Insert(t, pool, testenv.Sequence(topic, 1, "a")...)
	<-held
	stop()
	testenv.Eventually(t, "the stopping relay gives up its bell", func() bool {
		_, body := get(t, "http://"+running.addr+"/readyz")
		return strings.Contains(body, `"listener_up": false`)
	})
	running.probe(t, "/livez", 200)
	close(release)
	running.wait().wants(t, exitOK, "relay stopped")
	if status, _ := get(t, "http://"+running.addr+"/livez"); status != 0 {
		t.Errorf("the server still answers with %d", status)
	}
	var published int
	if err := pool.QueryRow(t.Context(), "SELECT count(published_at) FROM outbox_event").Scan(&published); err != nil {
		t.Fatal(err)
	}
	if published != 1 {
		t.Error("the event that was under way is not marked")
	}
}

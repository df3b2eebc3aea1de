package main

import (
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// TERM_ROUNDS sets the number of stops.
func TestTermUnderLoadLosesAndRepeatsNothing(t *testing.T) {
	buildRelay(t)
	t.Parallel()
	env := newEnvironment(t)
	traffic := startTraffic(t, env)
	for range rounds(t, "TERM_ROUNDS", 20) {
		p := startProcess(t, env)
		traffic.flow(t, rand.IntN(60))
		p.terminate(t)
	}
	last := startProcess(t, env)
	traffic.drain(t)
	last.terminate(t)
	if repeats := traffic.verdict(t); repeats > 0 {
		t.Errorf("%d repeats, want none", repeats)
	}
}

// TERM_ROUNDS sets the number of replacements.
func TestRollingReplacementUnderLoadLosesAndRepeatsNothing(t *testing.T) {
	buildRelay(t)
	t.Parallel()
	env := newEnvironment(t)
	traffic := startTraffic(t, env)
	old := startProcess(t, env)
	for range rounds(t, "TERM_ROUNDS", 20) {
		replacement := startProcess(t, env)
		replacement.ready(t)
		traffic.flow(t, rand.IntN(60))
		old.terminate(t)
		old = replacement
	}
	traffic.drain(t)
	old.terminate(t)
	if repeats := traffic.verdict(t); repeats > 0 {
		t.Errorf("%d repeats, want none", repeats)
	}
}

// The first signal waits for a broker that does not take the batch, which may
// be too long for whoever sent it.
func TestTermASecondTimeEndsAtOnceAndLosesNothing(t *testing.T) {
	buildRelay(t)
	t.Parallel()
	for _, second := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(second.String(), func(t *testing.T) {
			t.Parallel()
			kafka := testenv.FakeKafka(t)
			topic := testenv.Topic(t, kafka.ListenAddrs(), 1)
			env := newEnvironment(t).with("KAFKA_BROKERS", strings.Join(kafka.ListenAddrs(), ",")).
				with("RELAY_PUBLISH_TIMEOUT", "10m").with("RELAY_SHUTDOWN_TIMEOUT", "10m")
			refusing := kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicas, Count: -1})
			p := startProcess(t, env)
			inserted := testenv.Insert(t, testenv.Pool(t, env["DATABASE_URL"]), testenv.Sequence(topic, 10, "a")...)
			if err := refusing.Wait(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			listens := func(up string) func() bool {
				return func() bool {
					_, body := get(t, "http://"+p.addr+"/readyz")
					return strings.Contains(body, `"listener_up": `+up)
				}
			}
			// Seen to have been followed before the second is sent: two signals
			// that are pending at once are one.
			testenv.Eventually(t, "the process listens", listens("true"))
			p.signal(t, syscall.SIGTERM)
			testenv.Eventually(t, "the process gives up its bell", listens("false"))
			p.signal(t, second)
			p.end(t).wants(t, exitRuntime, "second signal, ending at once")

			refusing.Remove()
			successor := startProcess(t, env)
			consumer := testenv.Consume(t, kafka.ListenAddrs(), topic)
			consumer.WaitFor(t, len(inserted))
			successor.terminate(t)
			consumer.CheckOnce(t, inserted)
		})
	}
}

package main

import (
	"syscall"
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/embedpg"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

func TestRestartOfPostgresUnderLoadLosesNothing(t *testing.T) {
	buildRelay(t)
	t.Parallel()
	for _, tt := range []struct {
		name string
		stop func(t *testing.T, server *embedpg.Server)
	}{
		{"in the orderly way", func(*testing.T, *embedpg.Server) {}},
		// Marks that had not reached the disk are gone, and their events come
		// again.
		{"after a crash", func(t *testing.T, server *embedpg.Server) {
			t.Helper()
			if err := syscall.Kill(server.PID(), syscall.SIGQUIT); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := testenv.Postgres(t)
			env := environmentAt(t, server.URL())
			traffic := startTraffic(t, env)
			p := startProcess(t, env)
			p.listening(t)
			const restarts = 2
			for n := range restarts {
				traffic.flow(t, 200)
				tt.stop(t, server)
				if err := server.Restart(t.Context()); err != nil {
					t.Fatal(err)
				}
				p.recovered(t, "database", n+1)
				p.recovered(t, "listener", n+1)
			}
			traffic.flow(t, 200)
			traffic.drain(t)
			p.ready(t)
			p.terminate(t)
			traffic.verdict(t)
			p.wantOutages(t, "database", restarts)
			p.wantOutages(t, "listener", restarts)
		})
	}
}

// The broker comes back on the same port, with what it had stored.
func TestRestartOfKafkaUnderLoadLosesNothing(t *testing.T) {
	buildRelay(t)
	t.Parallel()
	kafka := startFakeBroker(t)
	const restarts = 2
	p := restartKafka(t, kafka.Addr(), "3s", restarts, func(noticed func()) {
		_ = kafka.Kill()
		noticed()
		if err := kafka.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	p.wantOutages(t, "kafka", restarts)
}

// restartKafka runs a relay under load while restart stops the broker at the
// address and starts it again, and returns the relay's process after its end.
// In between, restart may wait until the relay has noticed, which takes as long
// as publishTimeout.
func restartKafka(t *testing.T, addr, publishTimeout string, restarts int, restart func(noticed func())) *process {
	t.Helper()
	env := newEnvironment(t).with("KAFKA_BROKERS", addr).
		with("RELAY_WORKERS", "2").with("RELAY_BATCH_MAX", "100").with("RELAY_PUBLISH_TIMEOUT", publishTimeout)
	traffic := startTraffic(t, env)
	p := startProcess(t, env)
	for range restarts {
		traffic.flow(t, 200)
		lines := len(p.changes("kafka"))
		restart(func() {
			testenv.Eventually(t, "the relay says that the broker is gone", func() bool { return len(p.changes("kafka")) > lines })
		})
	}
	traffic.flow(t, 200)
	traffic.drain(t)
	p.ready(t)
	p.terminate(t)
	if repeats, limit := traffic.verdict(t), restarts*2*100; repeats > limit {
		t.Errorf("%d repeats, want at most the %d rows in flight", repeats, limit)
	}
	return p
}

// The server ends the relay's sessions, those of the pool and the listening one
// in turn.
func TestRestartOfConnectionsUnderLoadLosesNothing(t *testing.T) {
	buildRelay(t)
	t.Parallel()
	env := newEnvironment(t)
	traffic := startTraffic(t, env)
	p := startProcess(t, env.with("DATABASE_URL", env.applicationName(t, "relay-pool")).
		with("RELAY_LISTEN_URL", env.applicationName(t, "relay-listener")))
	terminate := func(name string) {
		t.Helper()
		if _, err := traffic.pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = $1`, name); err != nil {
			t.Fatal(err)
		}
	}
	p.listening(t)
	const times = 5
	for n := range times {
		traffic.flow(t, 100)
		terminate("relay-pool")
		traffic.flow(t, 100)
		terminate("relay-listener")
		p.recovered(t, "listener", n+1)
	}
	traffic.drain(t)
	p.ready(t)
	p.terminate(t)
	traffic.verdict(t)
	p.wantOutages(t, "listener", times)
	// A pool may find a second dead session after it has got a new one, and does
	// not notice the loss of one that it had no use for.
	if changes := p.outages("database"); len(changes) > 2*2*times {
		t.Errorf("the log says of the database: %q, want %d times down and up, or a few more", changes, times)
	}
}

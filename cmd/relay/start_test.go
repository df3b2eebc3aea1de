package main

import (
	"net/url"
	"strings"
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// Each case breaks one thing. run refuses to start and check reports it, both
// with what to do next.
func TestStartFailsFast(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		// break returns the broken environment.
		breaking func(t *testing.T, env variables) variables
		want     []string
	}{
		{
			"no such database", func(t *testing.T, env variables) variables {
				return env.with("DATABASE_URL", env.edited(t, func(u *url.URL) { u.Path = "/nowhere" }))
			}, []string{"DATABASE_URL", `database "nowhere" does not exist`, "check user, password and database name"},
		},
		{
			"a wrong password", func(t *testing.T, env variables) variables {
				return env.with("DATABASE_URL", env.edited(t, func(u *url.URL) { u.User = url.UserPassword("nobody_"+u.User.Username(), secret) }))
			}, []string{"DATABASE_URL", "check user, password and database name"},
		},
		{
			"a database that is down", func(t *testing.T, env variables) variables {
				return env.with("RELAY_STARTUP_TIMEOUT", "500ms").
					with("DATABASE_URL", env.edited(t, func(u *url.URL) { u.Host, u.User = closedPort(t), url.UserPassword("u", secret) }))
			}, []string{"DATABASE_URL", "cannot be reached", "check host, port and network"},
		},
		{
			"a missing table", func(_ *testing.T, env variables) variables {
				return env.with("RELAY_TABLE", "public.nothing")
			}, []string{"table public.nothing does not exist", `"relay migrate"`},
		},
		{
			"a table that is no outbox", func(t *testing.T, env variables) variables {
				env.exec(t, "CREATE TABLE orders (id text)")
				return env.with("RELAY_TABLE", "orders")
			}, []string{"table public.orders", "event_id", "published_at"},
		},
		{
			"a missing index", func(t *testing.T, env variables) variables {
				env.exec(t, "DROP INDEX ix_outbox_event_unpublished")
				return env
			}, []string{"index", `"relay migrate"`},
		},
		{
			"a missing topic", func(_ *testing.T, env variables) variables {
				return env.with("RELAY_REQUIRE_TOPICS", "shop.nothing.one,shop.nothing.two")
			}, []string{"topic shop.nothing.one is missing", "topic shop.nothing.two is missing", "create it"},
		},
		{
			"a broker that is down", func(t *testing.T, env variables) variables {
				return env.with("RELAY_STARTUP_TIMEOUT", "500ms").with("KAFKA_BROKERS", closedPort(t))
			}, []string{"KAFKA_BROKERS", "check addresses and network"},
		},
		{
			"all of it at once", func(t *testing.T, env variables) variables {
				return env.with("RELAY_STARTUP_TIMEOUT", "500ms").with("KAFKA_BROKERS", closedPort(t)).
					with("DATABASE_URL", env.edited(t, func(u *url.URL) { u.Host = closedPort(t) }))
			}, []string{"DATABASE_URL", "KAFKA_BROKERS"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			env := tt.breaking(t, newEnvironment(t))
			run := relayCommand(t, env, "run")
			run.wants(t, exitRuntime, append(tt.want, "the relay cannot start")...)
			check := relayCommand(t, env, "check")
			check.wants(t, exitFindings, append(tt.want, "fault ")...)
			if password, set := mustParse(t, env["DATABASE_URL"]).User.Password(); set && strings.Contains(run.stdout+run.stderr+check.stdout+check.stderr, password) {
				t.Errorf("the password is in the output:\n%s%s", run.stderr, check.stdout)
			}
		})
	}
}

func mustParse(t *testing.T, raw string) *url.URL {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestStartFailsOnAPortInUseBeforeAnythingElse(t *testing.T) {
	t.Parallel()
	addr := takenPort(t)
	// The servers of this environment do not exist: it must not come to them.
	env := valid.with("RELAY_HTTP_ADDR", addr)
	relayCommand(t, env, "run").wants(t, exitRuntime, "listen for HTTP on "+addr, "the port is in use", "set RELAY_HTTP_ADDR")
}

func TestStopDuringTheStartIsNoFailure(t *testing.T) {
	t.Parallel()
	env := newEnvironment(t).with("KAFKA_BROKERS", closedPort(t))
	running, stop := startRelay(t, env)
	running.probe(t, "/livez", 200)
	running.probe(t, "/readyz", 503)
	stop()
	running.wait().wants(t, exitOK, "relay stopped")
}

func TestCheckFindsNothingWrong(t *testing.T) {
	t.Parallel()
	env := newEnvironment(t)
	env = env.with("RELAY_REQUIRE_TOPICS", testenv.Topic(t, testenv.Brokers(t), 1))
	got := relayCommand(t, env, "check")
	got.wants(t, exitOK, "ok       settings", "ok       database: table public.outbox_event", "ok       brokers: ", "ok       topics: "+env["RELAY_REQUIRE_TOPICS"])
}

func TestCheckReportsWarnings(t *testing.T) {
	t.Parallel()
	env := newEnvironment(t)
	env.exec(t, "DROP TRIGGER outbox_relay_notify ON outbox_event")
	relayCommand(t, env, "check").wants(t, exitFindings, "warning  table public.outbox_event", "polling only", `"relay migrate"`)

	// A relay starts all the same: polling works.
	running, stop := startRelay(t, env)
	running.probe(t, "/readyz", 200)
	stop()
	running.wait().wants(t, exitOK, "start-up check", "polling only")
}

// A server that restarts, or an administrator, may end the session of the
// checks.
func TestStartGoesOnAfterTheSessionOfItsChecksWasEnded(t *testing.T) {
	t.Parallel()
	counter, through := countStatements(t, newEnvironment(t))
	counter.cut.Store(2)
	running, stop := startRelay(t, through)
	running.probe(t, "/readyz", 200)
	stop()
	running.wait().wants(t, exitOK, "server does not answer yet, it is waited for", "relay stopped")
	if counter.cut.Load() >= 0 {
		t.Error("no session was ended: this test shows nothing")
	}
}

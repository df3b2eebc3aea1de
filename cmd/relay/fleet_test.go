package main

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// fleet is relays that run on one table, each under a name of its own in
// pg_stat_activity.
type fleet struct {
	env     variables
	pool    *pgxpool.Pool
	relays  map[string]*process
	started int
}

func newFleet(t *testing.T, env variables, relays int) *fleet {
	t.Helper()
	f := &fleet{env: env, pool: testenv.Pool(t, env["DATABASE_URL"]), relays: map[string]*process{}}
	for range relays {
		f.start(t)
	}
	for _, p := range f.relays {
		p.ready(t)
		p.listening(t)
	}
	return f
}

// start adds a relay, and returns its name.
func (f *fleet) start(t *testing.T) string {
	t.Helper()
	f.started++
	name := fmt.Sprintf("relay-%d", f.started)
	f.relays[name] = startProcess(t, f.env.with("DATABASE_URL", f.env.applicationName(t, name)))
	return name
}

// sentinel waits until one of the relays is the sentinel, and returns its name.
func (f *fleet) sentinel(t *testing.T) (sentinel string) {
	t.Helper()
	testenv.Eventually(t, "one relay is the sentinel", func() bool {
		var sentinels []string
		for name, p := range f.relays {
			if h := p.health(t); h.Sentinel && h.ListenerUp {
				sentinels = append(sentinels, name)
			}
		}
		if len(sentinels) != 1 {
			return false // none yet, or two answers from different moments
		}
		sentinel = sentinels[0]
		return true
	})
	return sentinel
}

// killAndReplace leaves the table without one relay for as long as a start takes.
func (f *fleet) killAndReplace(t *testing.T, name string) {
	t.Helper()
	f.relays[name].kill(t)
	delete(f.relays, name)
	f.start(t)
}

// stopAndReplace stops a relay in the orderly way once its successor runs.
func (f *fleet) stopAndReplace(t *testing.T, name string) {
	t.Helper()
	f.relays[f.start(t)].ready(t)
	f.relays[name].terminate(t)
	delete(f.relays, name)
}

// terminateSessions has the server end all sessions of a relay.
func (f *fleet) terminateSessions(t *testing.T, name string) {
	t.Helper()
	if _, err := f.pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = $1`, name); err != nil {
		t.Fatal(err)
	}
}

// stop ends all relays in the orderly way.
func (f *fleet) stop(t *testing.T) {
	t.Helper()
	for name, p := range f.relays {
		p.terminate(t)
		delete(f.relays, name)
	}
}

// health returns what a relay says of itself, or nothing.
func (r *runningRelay) health(t *testing.T) (h struct {
	Sentinel   bool
	ListenerUp bool `json:"listener_up"`
	BellArmed  bool `json:"bell_armed"`
},
) {
	t.Helper()
	_, body := get(t, "http://"+r.addr+"/readyz")
	_ = json.Unmarshal([]byte(body), &h) // no answer says nothing
	return h
}

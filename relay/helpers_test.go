package relay

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
	"github.com/outbox-relay/outbox-relay/migrations"
)

// fixture is a migrated database and a cluster, for one test.
type fixture struct {
	cfg  Config
	pool *pgxpool.Pool // for the test's own statements
	log  *testenv.Log
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureAt(t, testenv.Database(t))
}

// newFixtureWithKafka is newFixture with a Kafka in memory of the test's own, for
// tests that make it fail.
func newFixtureWithKafka(t *testing.T) (*fixture, *kfake.Cluster) {
	t.Helper()
	cluster := testenv.FakeKafka(t)
	f := newFixture(t)
	f.cfg.Brokers = cluster.ListenAddrs()
	return f, cluster
}

func newFixtureAt(t *testing.T, database string) *fixture {
	t.Helper()
	table := pgtable.Name{Schema: "public", Table: "outbox_event"}
	log := testenv.Logs(t)
	if _, err := migrations.Up(t.Context(), database, table, migrations.Options{Logger: log.Logger}); err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig()
	cfg.DatabaseURL = database
	cfg.Brokers = testenv.Brokers(t)
	return &fixture{cfg: cfg, pool: testenv.Pool(t, database), log: log}
}

// role makes a role with the rights that a relay needs, until the test ends, and
// returns the URL under which it connects. Its name is made of a topic's.
func (f *fixture) role(t *testing.T, topic string) (name, databaseURL string) {
	t.Helper()
	name = "relay_" + topic[5:15]
	f.exec(t, fmt.Sprintf(`CREATE ROLE %[1]s LOGIN PASSWORD 'secret';
		GRANT SELECT, UPDATE (published_at) ON outbox_event TO %[1]s;
		GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_relay_failure TO %[1]s`, name))
	t.Cleanup(func() { f.dropRole(t, name) })
	return name, withUser(t, f.cfg.DatabaseURL, name, "secret")
}

// running is a relay that a test started.
type running struct {
	*Relay
	registry *prometheus.Registry
	cancel   context.CancelFunc
	done     chan error
}

// start runs a relay until the test ends or stop is called.
func (f *fixture) start(t *testing.T, change ...func(*Config)) *running {
	t.Helper()
	return f.startWith(t, func(*Relay) {}, change...)
}

// startWith is start of a relay that is tampered with.
func (f *fixture) startWith(t *testing.T, tamper func(*Relay), change ...func(*Config)) *running {
	t.Helper()
	cfg := f.cfg
	for _, apply := range change {
		apply(&cfg)
	}
	registry := prometheus.NewRegistry()
	r, err := New(cfg, WithLogger(f.log.Logger), WithRegisterer(registry))
	if err != nil {
		t.Fatal(err)
	}
	tamper(r)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	run := &running{Relay: r, registry: registry, cancel: cancel, done: make(chan error, 1)}
	go func() { run.done <- r.Run(ctx) }()
	t.Cleanup(func() { run.stop(t) })
	return run
}

// stop ends the relay and fails the test unless it stopped cleanly. It may be
// called again.
func (r *running) stop(t *testing.T) {
	t.Helper()
	r.cancel()
	select {
	case err := <-r.done:
		if err != nil {
			t.Errorf("relay stopped with %v", err)
		}
		r.done <- nil
	case <-time.After(30 * time.Second):
		t.Error("relay did not stop")
		r.done <- errors.New("still running")
	}
}

// unpublished counts the rows that are not marked.
func (f *fixture) unpublished(t *testing.T) int {
	t.Helper()
	var n int
	err := f.pool.QueryRow(t.Context(), `SELECT count(*) FROM outbox_event WHERE published_at IS NULL`).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// waitDrained waits until every row is marked.
func (f *fixture) waitDrained(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, "all rows are marked", func() bool { return f.unpublished(t) == 0 })
}

// withUser returns the URL with another user.
func withUser(t *testing.T, rawURL, user, password string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(user, password)
	return u.String()
}

// dropRole removes a role, which outlives the test's database.
func (f *fixture) dropRole(t *testing.T, role string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	conn, err := pgx.Connect(ctx, f.cfg.DatabaseURL)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, "DROP OWNED BY "+role+"; DROP ROLE "+role, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Error(err)
	}
}

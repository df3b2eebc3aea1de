//go:build pgbouncer

package relay

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-relay/outbox-relay/internal/pgbouncer"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// withMode returns the URL with one of pgx's ways to run statements.
func withMode(url, mode string) string { return url + "&default_query_exec_mode=" + mode }

// pooled is a fixture with a pooler beside it.
func pooled(t *testing.T) (*fixture, *pgbouncer.Pooler) {
	t.Helper()
	f := newFixture(t)
	return f, testenv.Pooler(t, f.cfg.DatabaseURL)
}

// The writers share the pooler's sessions with the relay.
func (f *fixture) writeThrough(t *testing.T, p *pgbouncer.Pooler) {
	t.Helper()
	f.pool = testenv.Pool(t, withMode(p.URL(), "exec"))
}

// sessionState is what a relay must not leave in sessions that serve others.
const sessionState = `
SELECT 'setting ' || name FROM pg_settings
 WHERE source = 'session' AND name NOT IN ('application_name', 'client_encoding', 'DateStyle', 'TimeZone', 'standard_conforming_strings',
       'default_transaction_read_only', 'in_hot_standby', 'IntervalStyle', 'search_path', 'scram_iterations')
UNION ALL
SELECT 'prepared statement ' || name FROM pg_prepared_statements
UNION ALL
SELECT 'lock ' || mode FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'`

// checkSessions looks into all of the pooler's sessions at the same time, so
// that each of them is looked into.
func checkSessions(t *testing.T, p *pgbouncer.Pooler) {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(withMode(p.URL(), "exec"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = pgbouncer.PoolSize
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for range pgbouncer.PoolSize {
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(t.Context()) }()
		rows, err := tx.Query(t.Context(), sessionState)
		if err != nil {
			t.Fatal(err)
		}
		left, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		if len(left) > 0 {
			t.Errorf("left in a session of the pooler: %s", strings.Join(left, ", "))
		}
	}
}

// The ticker comes once a minute: what is delivered was heard of.
func TestPgBouncerBeforeThePool(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_describe", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f, p := pooled(t)
			topic := testenv.Topic(t, f.cfg.Brokers, 4)
			consumer := testenv.Consume(t, f.cfg.Brokers, topic)
			direct := withMode(f.cfg.DatabaseURL, mode)
			f.writeThrough(t, p)
			r := f.start(t, slowTick, func(c *Config) { c.DatabaseURL, c.ListenURL = withMode(p.URL(), mode), direct })
			testenv.Eventually(t, "asleep", func() bool { return r.Health().BellArmed })
			began := time.Now()
			stop := f.steady(t, topic)
			consumer.WaitFor(t, 100)
			if r.metric(t, "outbox_relay_wakes_total", "notify") == 0 {
				t.Error("nothing was heard")
			}
			inserted := stop()
			inserted = append(inserted, testenv.Insert(t, f.pool, testenv.Sequence(topic, 3000, "a", "b", "c", "d")...)...)
			consumer.WaitFor(t, len(inserted))
			consumer.CheckOnce(t, inserted)
			f.waitDrained(t)
			checkSessions(t, p)
			logLatencies(t, mode, latencies(t, consumer.Deliveries()[:100], began, time.Now()))
			if lines := f.log.Entries(goneLines...); len(lines) > 0 {
				t.Errorf("%d lines about a listener that was lost", len(lines))
			}
		})
	}
}

// Here only the polls of a relay that knows that it is deaf deliver.
func TestPgBouncerBeforeTheListenerToo(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_describe", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f, p := pooled(t)
			topic := testenv.Topic(t, f.cfg.Brokers, 1)
			consumer := testenv.Consume(t, f.cfg.Brokers, topic)
			began := time.Now()
			r := f.start(t, slowTick, func(c *Config) { c.DatabaseURL = withMode(p.URL(), mode) })
			stop := f.steady(t, topic)
			line := f.log.WaitFor(t, goneLines[0])
			found := time.Now()
			if !strings.Contains(line.Message, "RELAY_LISTEN_URL") {
				t.Errorf("%q does not say what to do", line.Message)
			}
			if took := found.Sub(began); took > foundWithin {
				t.Errorf("found after %s", took)
			}
			if h := r.Health(); h.ListenerUp || h.Sentinel || h.BellArmed {
				t.Errorf("a relay that hears nothing shows %+v", h)
			}
			// Over several attempts to listen.
			consumer.WaitFor(t, len(consumer.Deliveries())+250)
			inserted := stop()
			consumer.WaitFor(t, len(inserted))
			consumer.CheckOnce(t, inserted)
			checkSessions(t, p)
			t.Logf("found %s after the start", found.Sub(began))
			logLatencies(t, mode+", before it was found", latencies(t, consumer.Deliveries(), began, found))
			logLatencies(t, mode+", deaf", latencies(t, consumer.Deliveries(), found, time.Now()))
			if gone := f.log.Entries(goneLines...); len(gone) != 1 {
				t.Errorf("%d lines say that nothing is heard, want 1", len(gone))
			}
			if up := f.log.Entries(backLines...); len(up) > 0 {
				t.Errorf("%d lines say that the relay listens", len(up))
			}
		})
	}
}

func TestPgBouncerRestartedUnderLoad(t *testing.T) {
	t.Parallel()
	f, p := pooled(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	direct := f.cfg.DatabaseURL
	r := f.start(t, func(c *Config) { c.DatabaseURL, c.ListenURL = withMode(p.URL(), "exec"), direct })
	stop := f.steady(t, topic)
	for range 3 {
		consumer.WaitFor(t, len(consumer.Deliveries())+50)
		if err := p.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	consumer.WaitFor(t, len(consumer.Deliveries())+50)
	inserted := stop()
	consumer.WaitFor(t, len(inserted))
	consumer.CheckAtLeastOnce(t, inserted)
	f.waitDrained(t)
	testenv.Eventually(t, "asleep", func() bool { return r.Health().BellArmed && r.Health().Ready() })
	checkSessions(t, p)
}

func TestPgBouncerIsFoundByTheCheck(t *testing.T) {
	t.Parallel()
	f, p := pooled(t)
	direct, through := f.cfg.DatabaseURL, withMode(p.URL(), "exec")
	for _, tt := range []struct{ pool, listen, warns string }{
		{through, "", "DATABASE_URL leads through a pooler and notifications do not arrive"},
		{direct, through, "RELAY_LISTEN_URL leads through a pooler and notifications do not arrive"},
		{through, direct, ""},
	} {
		cfg := f.cfg
		cfg.DatabaseURL, cfg.ListenURL = tt.pool, tt.listen
		found := Preflight(t.Context(), cfg, nil, f.log.Logger)
		warnings := strings.Join(found.Warnings, "\n")
		if len(found.Faults) > 0 || !strings.Contains(warnings, tt.warns) || tt.warns == "" && warnings != "" {
			t.Errorf("the check finds %v and warns %q; want %q", found.Faults, warnings, tt.warns)
		}
	}
}

// A version that does not keep prepared statements: what fails says what to do.
func TestPgBouncerAndPreparedStatements(t *testing.T) {
	t.Parallel()
	f, p := pooled(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	direct := f.cfg.DatabaseURL
	f.cfg.DatabaseURL = withMode(p.URL(), "cache_statement")
	f.cfg.ListenURL = direct
	found := Preflight(t.Context(), f.cfg, nil, f.log.Logger)
	r := f.start(t)
	stop := f.steady(t, topic)
	if p.KeepsPreparedStatements() {
		consumer := testenv.Consume(t, f.cfg.Brokers, topic)
		consumer.WaitFor(t, 100)
		inserted := stop()
		consumer.WaitFor(t, len(inserted))
		consumer.CheckOnce(t, inserted)
		if len(found.Faults) > 0 {
			t.Errorf("the check finds %v", found.Faults)
		}
		return
	}
	const advice = "add default_query_exec_mode=exec to"
	if !slices.ContainsFunc(found.Faults, func(err error) bool { return strings.Contains(err.Error(), advice+" DATABASE_URL") }) {
		t.Errorf("the check finds %v; want what to do", found.Faults)
	}
	testenv.Eventually(t, "the fault is shown with what to do", func() bool {
		return strings.Contains(r.Health().DatabaseError, advice)
	})
}

//go:build realkafka

// This test needs Java and Maven, which plain tests must do without; make
// test-kafka runs it.

package main

import (
	"testing"
	"time"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
)

// While Kafka is away, writers go on, no transaction of the relay grows old, and
// nobody is blamed; afterwards everything arrives. OUTAGE_SECONDS sets how long
// it is away.
func TestRealKafkaAwayHoldsNoTransactionAndBlamesNoRow(t *testing.T) {
	buildRelay(t)
	t.Parallel()
	const publishTimeout = 5 * time.Second
	broker := ownKafka(t)
	env := newEnvironment(t)
	env["KAFKA_BROKERS"] = broker.Addr()
	env["RELAY_PUBLISH_TIMEOUT"] = publishTimeout.String()
	table := pgtable.Name{Schema: "public", Table: "outbox_event"}

	f := newTraffic(t, env, 2)
	f.consume(t)
	w := f.writer("key-", trafficKeys, 200)
	f.write(w.Run)
	p := startProcess(t, env)
	f.flow(t, 200)
	if err := broker.Kill(); err != nil {
		t.Fatal(err)
	}
	var oldest time.Duration
	sample := time.NewTicker(50 * time.Millisecond)
	defer sample.Stop()
	for end := time.After(time.Duration(rounds(t, "OUTAGE_SECONDS", 10)) * time.Second); ; {
		select {
		case <-sample.C:
			oldest = max(oldest, oldestTransaction(t, f))
			continue
		case <-end:
		}
		break
	}
	began := time.Now()
	if err := broker.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	answered := time.Since(began)
	f.flow(t, 1)
	came := time.Since(began)
	f.drain(t)
	var marked time.Time
	if err := f.pool.QueryRow(t.Context(), "SELECT min(published_at) FROM "+table.Sanitize()+" WHERE published_at > $1", began).Scan(&marked); err != nil {
		t.Fatal(err)
	}
	t.Logf("oldest transaction of the relay %s; the broker answered %s after its start had begun, the first event was marked after %s, the consumer had it after %s",
		oldest, answered, marked.Sub(began), came)
	p.terminate(t)

	if oldest > publishTimeout+time.Second {
		t.Errorf("a transaction of the relay was %s old, with a publish timeout of %s", oldest, publishTimeout)
	}
	var blamed int
	if err := f.pool.QueryRow(t.Context(), "SELECT count(*) FROM "+table.Sibling("outbox_relay_failure")).Scan(&blamed); err != nil {
		t.Fatal(err)
	}
	if blamed > 0 {
		t.Errorf("%d rows were blamed for an outage", blamed)
	}
	// Two workers' batches, which were at rest.
	if repeats := f.verdict(t); repeats > 2*100 {
		t.Errorf("%d repeats, want at most the batches in flight", repeats)
	}
}

func oldestTransaction(t *testing.T, f *traffic) time.Duration {
	t.Helper()
	var seconds float64
	err := f.pool.QueryRow(t.Context(), `SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8
		FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'outbox-relay'`).Scan(&seconds)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(seconds * float64(time.Second))
}

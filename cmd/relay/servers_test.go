package main

import (
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
	"github.com/outbox-relay/outbox-relay/migrations"
)

// newEnvironment has a migrated database of the test's own and the tests'
// Kafka, and settings that do not get into the way of other tests.
func newEnvironment(t *testing.T) variables {
	t.Helper()
	return environmentAt(t, testenv.Database(t))
}

// environmentAt is newEnvironment for a database that the test brings.
func environmentAt(t *testing.T, url string) variables {
	t.Helper()
	env := variables{
		"DATABASE_URL":     url,
		"KAFKA_BROKERS":    strings.Join(testenv.Brokers(t), ","),
		"RELAY_HTTP_ADDR":  "127.0.0.1:0",
		"RELAY_LOG_FORMAT": "json",
	}
	table := pgtable.Name{Schema: "public", Table: "outbox_event"}
	if _, err := migrations.Up(t.Context(), env["DATABASE_URL"], table, migrations.Options{Logger: testenv.Logs(t).Logger}); err != nil {
		t.Fatal(err)
	}
	return env
}

// edited returns the environment's database URL after a change.
func (v variables) edited(t *testing.T, change func(*url.URL)) string {
	t.Helper()
	u, err := url.Parse(v["DATABASE_URL"])
	if err != nil {
		t.Fatal(err)
	}
	change(u)
	return u.String()
}

// exec runs a statement in the environment's database.
func (v variables) exec(t *testing.T, statement string) {
	t.Helper()
	if _, err := testenv.Pool(t, v["DATABASE_URL"]).Exec(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// closedPort returns an address at which nothing listens.
func closedPort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	return listener.Addr().String()
}

// takenPort returns an address at which something listens until the test ends.
func takenPort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String()
}

package testenv

import (
	"net/url"
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/faultproxy"
	"github.com/outbox-relay/outbox-relay/internal/pgbouncer"
)

// Network returns a network between a client and the Postgres at a URL, which a
// test can break, and the URL that leads through it. It is closed when the test
// ends.
func Network(tb testing.TB, databaseURL string) (network *faultproxy.Proxy, through string) {
	tb.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		tb.Fatal("the database URL does not parse")
	}
	network, err = faultproxy.New(u.Host)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(network.Close)
	u.Host = network.Addr()
	return network, u.String()
}

// Pooler returns a PgBouncer in transaction mode before the Postgres at a URL.
// It stops when the test ends, which fails when PgBouncer is not installed.
func Pooler(tb testing.TB, databaseURL string) *pgbouncer.Pooler {
	tb.Helper()
	p, err := pgbouncer.Start(tb.Context(), databaseURL)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := p.Stop(); err != nil {
			tb.Error(err)
		}
	})
	return p
}

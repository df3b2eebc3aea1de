package testenv

import (
	"net/url"
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/faultproxy"
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

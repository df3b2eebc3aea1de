// Package testenv gives tests and benchmarks their servers, databases and
// topics, and the small tools to wait for and check what a relay did.
//
// DATABASE_URL and KAFKA_BROKERS, when set, name the servers to use; otherwise
// each test binary starts a Postgres of its own on first use, and a Kafka
// inside its process. A test never skips: it fails when it cannot have them.
package testenv

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/outbox-relay/outbox-relay/internal/embedpg"
	"github.com/outbox-relay/outbox-relay/internal/realkafka"
)

// startTimeout bounds the start of a server, including the download of its
// binaries on a machine's first run.
const startTimeout = 5 * time.Minute

// closers stop what this process shares among its tests.
var closers struct {
	mu    sync.Mutex
	funcs []func() error
}

func onExit(f func() error) {
	closers.mu.Lock()
	defer closers.mu.Unlock()
	closers.funcs = append(closers.funcs, f)
}

// Main runs a package's tests and exits. Call it as the whole of TestMain: it
// stops the servers that the tests shared, and fails the run when a goroutine
// outlives it.
func Main(m *testing.M) {
	embedpg.RunChild()
	realkafka.RunChild()
	code := m.Run()
	for _, f := range closers.funcs {
		if err := f(); err != nil {
			fmt.Fprintln(os.Stderr, "testenv:", err)
			code = 1
		}
	}
	// Goroutines of kept-alive HTTP connections belong to no test.
	http.DefaultClient.CloseIdleConnections()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "testenv: the tests passed and left something running:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// sharedPostgres is the URL of the server for this process.
var sharedPostgres = sync.OnceValues(func() (string, error) {
	if url := os.Getenv("DATABASE_URL"); url != "" {
		return url, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	server, err := embedpg.Start(ctx, embedpg.Options{Parameters: parameters()})
	if err != nil {
		return "", err
	}
	onExit(server.Stop)
	return server.URL(), nil
})

// parameters are those of an embedded server: without fsync for tests, which
// then make and drop their databases many times faster; with it for
// benchmarks, whose figures would mean nothing otherwise.
func parameters() map[string]string {
	if bench := flag.Lookup("test.bench"); bench != nil && bench.Value.String() != "" {
		return nil
	}
	return map[string]string{"fsync": "off", "full_page_writes": "off"}
}

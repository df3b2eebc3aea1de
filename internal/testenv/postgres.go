package testenv

import (
	"context"
	"crypto/rand"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-relay/outbox-relay/internal/embedpg"
)

// cleanupTimeout bounds what a test does after its end, when its own context
// is cancelled already.
const cleanupTimeout = 30 * time.Second

// Database returns the URL of an empty database of the test's own. It is
// dropped, with whatever is still connected to it, when the test ends.
func Database(tb testing.TB) string {
	tb.Helper()
	server, err := sharedPostgres()
	if err != nil {
		tb.Fatalf("no Postgres for tests: %v", err)
	}
	name := "test_" + strings.ToLower(rand.Text())
	// template0 has no session that could be in the way of the copy.
	admin(tb.Context(), tb, server, "CREATE DATABASE "+name+" TEMPLATE template0")
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		admin(ctx, tb, server, "DROP DATABASE "+name+" WITH (FORCE)")
	})
	u, err := url.Parse(server)
	if err != nil {
		tb.Fatal("DATABASE_URL is no URL; write it as postgres://user:password@host:port/database")
	}
	u.Path = "/" + name
	return u.String()
}

// admin runs one statement on a connection of its own. It reports failures
// without ending the test, so that it can be used in its cleanup.
func admin(ctx context.Context, tb testing.TB, server, statement string) {
	tb.Helper()
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		tb.Errorf("connect for %q: %v", statement, err)
		return
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, statement); err != nil {
		tb.Errorf("%s: %v", statement, err)
	}
}

// Postgres returns a server of the test's own, which it may restart or kill.
// It starts in about two seconds and stops when the test ends.
func Postgres(tb testing.TB) *embedpg.Server {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), startTimeout)
	defer cancel()
	server, err := embedpg.Start(ctx, embedpg.Options{Parameters: parameters()})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := server.Stop(); err != nil {
			tb.Error(err)
		}
	})
	return server
}

// Pool returns a pool on the URL that is closed when the test ends.
func Pool(tb testing.TB, url string) *pgxpool.Pool {
	tb.Helper()
	pool, err := pgxpool.New(tb.Context(), url)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(pool.Close)
	return pool
}

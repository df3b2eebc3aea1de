//go:build pgbouncer

package pgbouncer_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestPgBouncerSharesSessionsAmongClients(t *testing.T) {
	t.Parallel()
	p := testenv.Pooler(t, testenv.Database(t))
	for range 2 {
		session := func() (pid int) {
			conn, err := pgx.Connect(t.Context(), p.URL()+"&default_query_exec_mode=exec")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
			if err := conn.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid); err != nil {
				t.Fatal(err)
			}
			return pid
		}
		if first, second := session(), session(); first != second {
			t.Errorf("two clients that are open got the sessions %d and %d, want one", first, second)
		}
		if err := p.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

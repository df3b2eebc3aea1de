package migrations

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// A role with timeouts of its own must not cut off the build of an index, nor the
// idle session that holds the lock.
func TestSessionsIgnoreTheTimeoutsOfTheRole(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	pool := testenv.Pool(t, url)
	want := map[string]string{
		"statement_timeout":                   "0",
		"idle_session_timeout":                "0",
		"idle_in_transaction_session_timeout": "0",
		"default_transaction_isolation":       "read committed",
		"search_path":                         `"Order Service"`,
		"lock_timeout":                        "500ms",
	}
	for name := range want {
		value := "'1h'"
		switch name {
		case "default_transaction_isolation":
			value = "serializable"
		case "search_path":
			value = "nowhere"
		}
		if _, err := pool.Exec(t.Context(), "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET "+name+" = "+strings.ReplaceAll(value, "'", "''")+"', current_database()); END $$"); err != nil {
			t.Fatal(err)
		}
	}
	s, err := newSession(url, pgtable.Name{Schema: "Order Service", Table: "outbox_event"}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.db.Close()
	for name, value := range want {
		var got string
		if err := s.db.QueryRowContext(t.Context(), "SELECT current_setting($1)", name).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != value {
			t.Errorf("%s is %s, want %s", name, got, value)
		}
	}
}

func TestServersBefore14AreRefused(t *testing.T) {
	t.Parallel()
	if err := checkVersion(130022, "13.22"); err == nil || !strings.Contains(err.Error(), "Postgres 13.22") {
		t.Errorf("Postgres 13 gives %v, want an error that names the version", err)
	}
	if err := checkVersion(140000, "14.0"); err != nil {
		t.Errorf("Postgres 14 gives %v, want none", err)
	}
}

func TestNoErrorHoldsThePassword(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"postgres://u:s3cret@127.0.0.1:1/db?connect_timeout=5",
		"postgres://u:s3cret@127.0.0.1:no/db",
		"host=127.0.0.1 port=no password=s3cret",
	} {
		_, err := Up(t.Context(), url, pgtable.Name{Schema: "public", Table: "outbox_event"}, Options{})
		if err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("Up with %s gave %v, want an error without the password", url, err)
		}
	}
}

func TestIndexNameFitsPostgres(t *testing.T) {
	t.Parallel()
	if got := indexName(pgtable.Name{Table: "outbox_event"}); got != "ix_outbox_event_unpublished" {
		t.Errorf("the index is %s, want ix_outbox_event_unpublished", got)
	}
	long := indexName(pgtable.Name{Table: "x" + strings.Repeat("é", 31)})
	if len(long) > 63 || !utf8.ValidString(long) {
		t.Errorf("the index of a long name is %s, of %d bytes", long, len(long))
	}
}

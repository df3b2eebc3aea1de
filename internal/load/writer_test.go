package load

import (
	"context"
	"errors"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

var table = pgtable.Name{Schema: "public", Table: "outbox_event"}

// newWriter writes to an outbox table of the test's own.
func newWriter(t *testing.T) *Writer {
	t.Helper()
	url := testenv.Database(t)
	testenv.OutboxTable(t, url)
	return &Writer{
		URL: url, Insert: InsertOutbox(table), Ledger: NewLedger(),
		Topics: []string{"load.event.sent"}, Keys: 6, KeyPrefix: "key-", Conns: 3,
		Count: 60, PayloadSize: 300,
	}
}

func TestWriterCommitsEachKeyInOrder(t *testing.T) {
	t.Parallel()
	writer := newWriter(t)
	writer.Topics = []string{"load.event.sent", "load.event.received"}
	if err := writer.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := writer.Ledger.Report(); got.Committed != 60 || got.Lost != 60 {
		t.Errorf("committed %d, missing %d; want 60, and all missing while nobody consumes", got.Committed, got.Lost)
	}
	var rows, keys, inOrder, topicsOfKey, size int
	err := testenv.Pool(t, writer.URL).QueryRow(t.Context(), `
		SELECT count(*), count(DISTINCT partition_key), count(*) FILTER (WHERE seq = nth),
		       max(topics), max(size)
		FROM (SELECT partition_key, (payload->>'seq')::int AS seq, octet_length(payload::text) AS size,
		             row_number() OVER (PARTITION BY partition_key ORDER BY id) AS nth,
		             (SELECT count(DISTINCT topic) FROM outbox_event t WHERE t.partition_key = o.partition_key) AS topics
		      FROM outbox_event o)`).Scan(&rows, &keys, &inOrder, &topicsOfKey, &size)
	if err != nil {
		t.Fatal(err)
	}
	// A fast connection may leave little to the others, but it has two keys.
	if rows != 60 || keys < 2 || keys > 6 || inOrder != 60 || topicsOfKey != 1 {
		t.Errorf("%d rows of %d keys, %d in order, %d topics a key; want 60 of 2 to 6, 60, 1", rows, keys, inOrder, topicsOfKey)
	}
	if size < 290 || size > 320 {
		t.Errorf("payload of %d bytes, want about 300", size)
	}
}

func TestWriterStopsWithItsContext(t *testing.T) {
	t.Parallel()
	writer := newWriter(t)
	writer.Count = 0
	insert, ctx := writer.Insert, t.Context()
	ctx, cancel := context.WithCancel(ctx)
	var inserted atomic.Int64
	writer.Insert = func(ctx context.Context, conn *pgx.Conn, event Event) error {
		if inserted.Add(1) == 10 {
			cancel() // in the middle of an insert, which is finished
		}
		return insert(ctx, conn, event)
	}
	if err := writer.Run(ctx); err != nil {
		t.Fatalf("a stop is no error: %v", err)
	}
	if got := int64(writer.Ledger.Report().Committed); got != inserted.Load() {
		t.Errorf("committed %d of %d inserts that had begun, want all", got, inserted.Load())
	}
}

func TestWriterEndsWithAnErrorOfTheDatabase(t *testing.T) {
	t.Parallel()
	writer := newWriter(t)
	writer.Insert = InsertOutbox(pgtable.Name{Schema: "public", Table: "missing"})
	err := writer.Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), `relation "public.missing" does not exist`) {
		t.Errorf("got %v, want the missing table", err)
	}
}

func TestWriterWaitsForADatabaseThatIsOutIfItIsPatient(t *testing.T) {
	t.Parallel()
	writer := newWriter(t)
	up := writer.URL
	out, err := url.Parse(up)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	out.Host = listener.Addr().String()
	_ = listener.Close()
	writer.URL = out.String()
	if err := writer.Run(t.Context()); err == nil {
		t.Error("a writer that is not patient gave no error")
	}
	writer.Patient = true
	ctx, stop := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer stop()
	if err := writer.Run(ctx); err != nil || ctx.Err() == nil {
		t.Errorf("got %v, want a writer that waits until it is stopped", err)
	}
	writer.URL = up
	if err := writer.Run(t.Context()); err != nil || writer.Ledger.Report().Committed != writer.Count {
		t.Errorf("got %v and %d events, want all of them", err, writer.Ledger.Report().Committed)
	}
}

func TestWriterTakesNoRefusedEventForAWrittenOne(t *testing.T) {
	t.Parallel()
	writer := newWriter(t)
	insert := writer.Insert
	var same uuid.UUID
	writer.Conns = 1
	writer.Insert = func(ctx context.Context, conn *pgx.Conn, event Event) error {
		event.ID = same // the second one is refused, as a different event with this id
		return insert(ctx, conn, event)
	}
	err := writer.Run(t.Context())
	if committed := writer.Ledger.Report().Committed; err == nil || committed != 1 {
		t.Errorf("committed %d, error %v; want 1 and the refusal", committed, err)
	}
}

// The backend of every insert is terminated once before, once after the commit:
// the event must be written once, and be known as committed.
func TestWriterWritesAnEventOnceThroughLostConnections(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		commit bool
	}{
		{"lost before the commit", false},
		{"lost after the commit", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			writer := newWriter(t)
			writer.Count, writer.Keys, writer.Conns = 4, 2, 2
			insert := writer.Insert
			var attempted sync.Map
			var lost atomic.Int64
			writer.Insert = func(ctx context.Context, conn *pgx.Conn, event Event) error {
				if _, again := attempted.LoadOrStore(event.ID, true); again {
					return insert(ctx, conn, event)
				}
				lost.Add(1)
				if tt.commit {
					if err := insert(ctx, conn, event); err != nil {
						return err
					}
				}
				_, err := conn.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
				return err
			}
			if err := writer.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			var rows int
			if err := testenv.Pool(t, writer.URL).QueryRow(t.Context(), "SELECT count(*) FROM outbox_event").Scan(&rows); err != nil {
				t.Fatal(err)
			}
			if committed := writer.Ledger.Report().Committed; rows != 4 || committed != 4 {
				t.Errorf("%d rows, %d known as committed; want 4 and 4", rows, committed)
			}
			if lost.Load() != 4 {
				t.Errorf("%d connections were lost, want one for each event", lost.Load())
			}
		})
	}
}

func TestWriterNotesByHowMuchItFellBehindAfterItsWarmup(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		warmup int
		behind bool
	}{
		{"no warm-up", 0, true},
		{"events after the warm-up", 2, true},
		{"nothing but warm-up", 3, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			writer := newWriter(t)
			writer.Rate, writer.Count, writer.Keys, writer.Conns = 1_000_000, 3, 1, 1
			writer.Warmup = tt.warmup
			if err := writer.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			// One connection cannot commit a million times a second.
			if behind := writer.Behind() > time.Microsecond; behind != tt.behind {
				t.Errorf("behind by %s, want more than a microsecond: %t", writer.Behind(), tt.behind)
			}
		})
	}
}

func TestConnectionLost(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		err  error
		want bool
	}{
		{"a broken pipe", errors.New("broken pipe"), true},
		{"terminated by an administrator", &pgconn.PgError{Code: "57P01"}, true},
		{"still starting up", &pgconn.PgError{Code: "57P03"}, true},
		{"connection failure", &pgconn.PgError{Code: "08006"}, true},
		{"statement timeout", &pgconn.PgError{Code: "57014"}, false},
		{"missing table", &pgconn.PgError{Code: "42P01"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := connectionLost(tt.err); got != tt.want {
				t.Errorf("got %t, want %t", got, tt.want)
			}
		})
	}
}

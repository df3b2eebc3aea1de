package testenv

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// outboxTable is the table as services create it, before a relay ever came.
// It takes the name of the table, and of the index in the table's schema.
const outboxTable = `
CREATE TABLE %s (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id       uuid         NOT NULL UNIQUE,
    aggregate_type text         NOT NULL,
    aggregate_id   text         NOT NULL,
    event_type     text         NOT NULL,
    payload        jsonb        NOT NULL,
    topic          text         NOT NULL,
    partition_key  text         NOT NULL,
    created_at     timestamptz  NOT NULL DEFAULT now(),
    published_at   timestamptz
);
CREATE INDEX %s ON %[1]s(id) WHERE published_at IS NULL`

// OutboxTable creates the outbox table and its index in the database at url,
// without trigger or migrations. The table is named outbox_event, or name,
// which may be a schema and a table; the schema is created too.
func OutboxTable(tb testing.TB, url string, name ...string) {
	tb.Helper()
	conn, err := pgx.Connect(tb.Context(), url)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(tb.Context())) }()
	if len(name) > 1 {
		if _, err := conn.Exec(tb.Context(), "CREATE SCHEMA IF NOT EXISTS "+pgx.Identifier(name[:1]).Sanitize()); err != nil {
			tb.Fatal(err)
		}
	}
	table := tableName(name)
	index := pgx.Identifier{"ix_" + table[len(table)-1] + "_unpublished"}
	if _, err := conn.Exec(tb.Context(), fmt.Sprintf(outboxTable, table.Sanitize(), index.Sanitize())); err != nil {
		tb.Fatalf("create outbox table %s: %v", table.Sanitize(), err)
	}
}

func tableName(name []string) pgx.Identifier {
	if len(name) == 0 {
		return pgx.Identifier{"outbox_event"}
	}
	return pgx.Identifier(name)
}

// Event is a row to insert.
type Event struct {
	// EventID is a new UUIDv7 when empty.
	EventID string
	// AggregateType, AggregateID and Type are order, the Key (1 when that is
	// empty too) and order.confirmed when empty.
	AggregateType, AggregateID, Type string
	// Payload is JSON, and {} when empty.
	Payload string
	// Topic and Key are taken as they are, also when empty.
	Topic, Key string
}

// Sequence returns n events for the topic, dealt to the keys in turn. Their
// payloads carry ascending sequence numbers from 1, by which [Consumer] checks
// the order.
func Sequence(topic string, n int, keys ...string) []Event {
	events := make([]Event, n)
	for i := range events {
		events[i] = Event{Topic: topic, Key: keys[i%len(keys)], Payload: Payload(i + 1)}
	}
	return events
}

// Payload returns a payload that carries the sequence number, which has to rise
// from one event of a key to the next.
func Payload(seq int) string { return fmt.Sprintf(`{"seq": %d}`, seq) }

// Execer is a pool, a connection or a transaction of pgx.
type Execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Insert inserts the events in their order, in one statement, into outbox_event
// and returns their event ids. It ends the test on an error.
func Insert(tb testing.TB, db Execer, events ...Event) []string {
	tb.Helper()
	ids, err := InsertInto(tb.Context(), db, pgx.Identifier{"outbox_event"}, events...)
	if err != nil {
		tb.Fatal(err)
	}
	return ids
}

// InsertInto is Insert for any table and for goroutines other than the test's,
// which may not end it.
func InsertInto(ctx context.Context, db Execer, table pgx.Identifier, events ...Event) ([]string, error) {
	columns := make([][]string, 7)
	for _, e := range events {
		for i, value := range e.values() {
			columns[i] = append(columns[i], value)
		}
	}
	args := make([]any, len(columns))
	for i, column := range columns {
		args[i] = column
	}
	_, err := db.Exec(ctx, `INSERT INTO `+table.Sanitize()+`
		(event_id, aggregate_type, aggregate_id, event_type, payload, topic, partition_key)
		SELECT e.event_id::uuid, e.aggregate_type, e.aggregate_id, e.event_type, e.payload::jsonb, e.topic, e.partition_key
		FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[]) WITH ORDINALITY
			AS e (event_id, aggregate_type, aggregate_id, event_type, payload, topic, partition_key, n)
		ORDER BY e.n`, args...)
	if err != nil {
		return nil, fmt.Errorf("insert %d events into %s: %w", len(events), table.Sanitize(), err)
	}
	return columns[0], nil
}

// values are the columns with their defaults, the event id first.
func (e Event) values() [7]string {
	or := func(value, fallback string) string {
		if value == "" {
			return fallback
		}
		return value
	}
	return [7]string{
		or(e.EventID, uuid.Must(uuid.NewV7()).String()),
		or(e.AggregateType, "order"),
		or(e.AggregateID, or(e.Key, "1")),
		or(e.Type, "order.confirmed"),
		or(e.Payload, "{}"),
		e.Topic,
		e.Key,
	}
}

// RemovalStatement is what the README removes old rows with, for another age than
// the one there. It reads the README for a package one folder below it.
func RemovalStatement(tb testing.TB, age string) string {
	tb.Helper()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		tb.Fatal(err)
	}
	const begin, readmeAge = "DELETE FROM outbox_event", "interval '7 days'"
	_, after, _ := strings.Cut(string(readme), "```sql\n"+begin)
	statement, _, found := strings.Cut(after, "```")
	if !found || !strings.Contains(statement, readmeAge) {
		tb.Fatal("README.md does not say how to remove old rows")
	}
	return begin + strings.Replace(statement, readmeAge, "interval '"+age+"'", 1)
}

package load

import (
	"bytes"
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
)

// Event is one row of the outbox table, as the writer knows it.
type Event struct {
	// ID is a UUIDv7 and becomes the x-event-id header.
	ID uuid.UUID
	// Key is the partition key, and Seq counts the events of this key from 1
	// in the order of their commits.
	Key   string
	Seq   int64
	Topic string
	// PayloadSize is the length in bytes that the payload should about have.
	PayloadSize int
}

// InsertFunc commits one event in one transaction. It is given a connection
// that nobody else uses meanwhile.
type InsertFunc func(ctx context.Context, conn *pgx.Conn, event Event) error

// InsertOutbox commits just the outbox row, in one round trip.
func InsertOutbox(table pgtable.Name) InsertFunc {
	statement := OutboxStatement(table)
	return func(ctx context.Context, conn *pgx.Conn, event Event) error {
		_, err := conn.Exec(ctx, statement, event.Row("load", event.Key, "load.sent", event.Payload())...)
		return err
	}
}

// OutboxStatement is the INSERT that Row has the arguments of.
func OutboxStatement(table pgtable.Name) string {
	return "INSERT INTO " + table.Sanitize() +
		" (event_id, aggregate_type, aggregate_id, event_type, payload, topic, partition_key)" +
		" VALUES ($1, $2, $3, $4, $5, $6, $7)"
}

// Row returns the arguments of OutboxStatement.
func (e Event) Row(aggregateType, aggregateID, eventType string, payload []byte) []any {
	return []any{e.ID, aggregateType, aggregateID, eventType, payload, e.Topic, e.Key}
}

// Payload is JSON of about PayloadSize bytes, and of no less than the event's
// own fields take.
func (e Event) Payload() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"key":%q,"seq":%d,"fill":"`, e.Key, e.Seq)
	if fill := e.PayloadSize - b.Len() - 2; fill > 0 {
		b.Write(bytes.Repeat([]byte("x"), fill))
	}
	b.WriteString(`"}`)
	return b.Bytes()
}

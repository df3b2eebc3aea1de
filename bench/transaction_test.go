package bench

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/load"
)

// transaction is what a writer commits with each event.
type transaction string

const (
	bare      transaction = "bare"
	pipelined transaction = "pipelined"
	business  transaction = "business"
)

const insertBooking = "INSERT INTO booking (account, amount) VALUES ($1, $2)"

// insert returns the function that commits one, and makes the table it needs.
// The business rows go to one table for all, so that two outboxes under
// comparison differ in nothing else.
func (t transaction) insert(b *testing.B, o *outbox) load.InsertFunc {
	b.Helper()
	if t == bare {
		return load.InsertOutbox(o.table)
	}
	const table = `CREATE TABLE IF NOT EXISTS booking (
		id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
		account  text        NOT NULL,
		amount   bigint      NOT NULL,
		booked   timestamptz NOT NULL DEFAULT now())`
	if _, err := o.pool.Exec(b.Context(), table); err != nil {
		b.Fatalf("make the business table: %v", err)
	}
	outboxRow := load.OutboxStatement(o.table)
	if t == pipelined {
		return func(ctx context.Context, conn *pgx.Conn, event load.Event) error {
			batch := &pgx.Batch{}
			batch.Queue("BEGIN")
			batch.Queue(insertBooking, event.Key, event.Seq)
			batch.Queue(outboxRow, event.Row("load", event.Key, "load.sent", event.Payload())...)
			batch.Queue("COMMIT")
			return conn.SendBatch(ctx, batch).Close()
		}
	}
	return func(ctx context.Context, conn *pgx.Conn, event load.Event) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, insertBooking, event.Key, event.Seq); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, outboxRow, event.Row("load", event.Key, "load.sent", event.Payload())...)
			return err
		})
	}
}

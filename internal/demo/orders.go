package demo

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/load"
)

var items = []string{"teapot", "kettle", "lamp", "notebook", "umbrella"}

// placeOrder returns what a service does in its business transaction: the row
// of the order and the row of its event, committed together or not at all.
func (s *Stage) placeOrder() load.InsertFunc {
	insertOrder := "INSERT INTO " + s.orders() + " (id, customer, item) VALUES ($1, $2, $3)"
	insertEvent := load.OutboxStatement(s.Table)

	return func(ctx context.Context, conn *pgx.Conn, event load.Event) error {
		id := fmt.Sprintf("%s-%d", event.Key, event.Seq)
		item := items[event.Seq%int64(len(items))]
		payload, err := json.Marshal(map[string]any{"order": id, "customer": event.Key, "item": item})
		if err != nil {
			return fmt.Errorf("encode order %s: %w", id, err)
		}
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, insertOrder, id, event.Key, item); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, insertEvent, event.Row("order", id, "order.placed", payload)...)
			return err
		})
	}
}

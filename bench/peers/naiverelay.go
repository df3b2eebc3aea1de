package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	naiveBatch = 50
	naivePoll  = 500 * time.Millisecond

	naiveClaim = `SELECT id, event_id::text, event_type, payload::text, topic, partition_key FROM public.outbox_event
		WHERE published_at IS NULL ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED`
	naiveMark = "UPDATE public.outbox_event SET published_at = now() WHERE id = ANY($1)"
)

// naiveRelay is the loop of the naive relay, which runs in a process of its own.
type naiveRelay struct {
	databaseURL string
	brokers     []string
	// channel that the trigger notifies; none for the poller.
	channel string
}

// run relays until ctx ends.
func (n naiveRelay) run(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, n.databaseURL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }() // nothing depends on a clean goodbye
	listener, err := pgx.Connect(ctx, n.databaseURL)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close(context.Background()) }()
	if n.channel != "" {
		if _, err := listener.Exec(ctx, "LISTEN "+n.channel); err != nil {
			return err
		}
	}
	producer, err := kgo.NewClient(
		kgo.SeedBrokers(n.brokers...),
		kgo.MetadataMinAge(100*time.Millisecond),
		kgo.ProducerLinger(0),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
	)
	if err != nil {
		return err
	}
	defer producer.Close()
	for ctx.Err() == nil {
		// A stop must not cut a batch in two.
		claimed, err := publishBatch(context.WithoutCancel(ctx), conn, producer)
		if err != nil {
			return err
		}
		if claimed < naiveBatch {
			wait, cancel := context.WithTimeout(ctx, naivePoll)
			// Without LISTEN this waits for the whole of the time.
			_, _ = listener.WaitForNotification(wait)
			cancel()
		}
	}
	return nil
}

func publishBatch(ctx context.Context, conn *pgx.Conn, producer *kgo.Client) (claimed int, err error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback(ctx) }() // after a commit it does nothing
	ids, records, err := claimBatch(ctx, tx)
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	if err := producer.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return 0, fmt.Errorf("produce: %w", err)
	}
	if _, err := tx.Exec(ctx, naiveMark, ids); err != nil {
		return 0, fmt.Errorf("mark: %w", err)
	}
	return len(ids), tx.Commit(ctx)
}

func claimBatch(ctx context.Context, tx pgx.Tx) (ids []int64, records []*kgo.Record, err error) {
	rows, err := tx.Query(ctx, naiveClaim, naiveBatch)
	if err != nil {
		return nil, nil, fmt.Errorf("claim: %w", err)
	}
	var id int64
	var event, kind, payload, topic, key string
	_, err = pgx.ForEachRow(rows, []any{&id, &event, &kind, &payload, &topic, &key}, func() error {
		ids = append(ids, id)
		records = append(records, &kgo.Record{
			Topic: topic, Key: []byte(key), Value: []byte(payload),
			Headers: []kgo.RecordHeader{{Key: "x-event-id", Value: []byte(event)}, {Key: "x-event-type", Value: []byte(kind)}},
		})
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("claim: %w", err)
	}
	return ids, records, nil
}

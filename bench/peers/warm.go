package main

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"
)

// warmRequests is how many produce requests a broker needs until its JVM has
// compiled what serves them. A fresh one took 1.8 ms for what takes 0.9 ms after
// a thousand, which whoever comes first would be charged with.
const warmRequests = 30_000

// warmKafka has the broker serve small produces and fetches before the first
// contender comes.
func warmKafka(ctx context.Context, brokers []string) error {
	const clients = 3
	topic := "peers-warm-up-" + uuid.NewString()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic), kgo.MetadataMinAge(100*time.Millisecond))
	if err != nil {
		return fmt.Errorf("warm Kafka up: %w", err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	if _, err := admin.CreateTopic(ctx, clients, -1, nil, topic); err != nil {
		return fmt.Errorf("warm Kafka up: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	for range clients {
		group.Go(func() error {
			producer, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ProducerLinger(0), kgo.ProducerBatchCompression(kgo.NoCompression()))
			if err != nil {
				return err
			}
			defer producer.Close()
			for range warmRequests / clients {
				if err := producer.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: make([]byte, 200)}).FirstErr(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	group.Go(func() error {
		for read := 0; read < warmRequests; {
			fetches := client.PollFetches(ctx)
			if err := fetches.Err0(); err != nil {
				return err
			}
			read += fetches.NumRecords()
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		return fmt.Errorf("warm Kafka up: %w", err)
	}
	if _, err := admin.DeleteTopic(context.WithoutCancel(ctx), topic); err != nil {
		return fmt.Errorf("warm Kafka up: %w", err)
	}
	return nil
}

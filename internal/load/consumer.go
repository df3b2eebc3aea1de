package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const assignTimeout = 30 * time.Second

// Consumer reads topics from their beginning and strikes off what it finds in a
// ledger.
type Consumer struct {
	// OnRecord, when set before Run, sees each record with its latency from
	// the INSERT.
	OnRecord func(record *kgo.Record, latency time.Duration)

	client *kgo.Client
	ledger *Ledger
	topics []string

	records atomic.Int64
	ready   chan struct{}
	once    sync.Once
}

// NewConsumer returns a consumer of all partitions of the topics. It connects
// in Run.
func NewConsumer(brokers, topics []string, ledger *Ledger) (*Consumer, error) {
	c := &Consumer{ledger: ledger, topics: topics, ready: make(chan struct{})}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(brokers...),
		kgo.ClientID("outbox-load-consumer"),
		kgo.MetadataMinAge(100*time.Millisecond), // the default of 5 s would delay the start
		kgo.WithHooks(c),
	)
	if err != nil {
		return nil, fmt.Errorf("make a Kafka consumer: %w", err)
	}
	c.client = client
	return c, nil
}

// Run consumes until ctx ends, which is no error. The client retries whatever
// can be retried; any other error of a fetch ends Run, and so do topics that do
// not exist within 30 s.
func (c *Consumer) Run(ctx context.Context) error {
	if err := c.assign(ctx); err != nil {
		return err
	}
	for ctx.Err() == nil {
		fetches := c.client.PollFetches(ctx)
		now := time.Now()
		fetches.EachRecord(func(record *kgo.Record) {
			latency := c.ledger.Received(eventID(record), now)
			if c.OnRecord != nil {
				c.OnRecord(record, latency)
			}
			c.records.Add(1)
		})
		if err := fetches.Err(); err != nil && ctx.Err() == nil {
			return fmt.Errorf("consume: %w", err)
		}
	}
	return nil
}

// assign has all partitions consumed from their first record, once all of them
// can be. A broker hosts the partitions of a new topic some time after it said
// that it made them; a client that asks before is not answered, and waits for a
// second until it asks again, a second that the events would be charged with.
func (c *Consumer) assign(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, assignTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		starts, err := kadm.NewClient(c.client).ListStartOffsets(bounded, c.topics...)
		if err = errors.Join(err, starts.Error()); err == nil {
			c.client.AddConsumePartitions(starts.KOffsets())
			return nil
		}
		select {
		case <-tick.C:
		case <-bounded.Done():
			if ctx.Err() == nil {
				return fmt.Errorf("find the partitions to consume: %w", err)
			}
			return nil // a stop
		}
	}
}

// Close ends the client. Call it after Run has returned.
func (c *Consumer) Close() { c.client.Close() }

// Ready is closed when the consumer asked a broker for records the first time.
// Events written before that would be charged with the consumer's start.
func (c *Consumer) Ready() <-chan struct{} { return c.ready }

// OnBrokerWrite implements kgo.HookBrokerWrite, for Ready.
func (c *Consumer) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	const fetch = 1
	if key == fetch && err == nil {
		c.once.Do(func() { close(c.ready) })
	}
}

// CatchUp returns nil once every record that the topics hold has been consumed.
// After the relay has ended, this makes the count of duplicates final.
func (c *Consumer) CatchUp(ctx context.Context) error {
	admin := kadm.NewClient(c.client)
	starts, err := admin.ListStartOffsets(ctx, c.topics...)
	if err != nil {
		return fmt.Errorf("list start offsets: %w", err)
	}
	ends, err := admin.ListEndOffsets(ctx, c.topics...)
	if err != nil {
		return fmt.Errorf("list end offsets: %w", err)
	}
	if err := errors.Join(starts.Error(), ends.Error()); err != nil {
		return fmt.Errorf("list offsets: %w", err)
	}
	var stored int64
	ends.Each(func(end kadm.ListedOffset) {
		start, _ := starts.Lookup(end.Topic, end.Partition)
		stored += end.Offset - start.Offset
	})

	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for c.records.Load() < stored {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("consume what the topics hold: %d of %d records: %w", c.records.Load(), stored, context.Cause(ctx))
		}
	}
	return nil
}

// eventID returns the id in the x-event-id header, or the zero id when the
// header is missing or no UUID.
func eventID(record *kgo.Record) uuid.UUID {
	for _, header := range record.Headers {
		if header.Key == "x-event-id" {
			id, err := uuid.ParseBytes(header.Value)
			if err != nil {
				return uuid.UUID{}
			}
			return id
		}
	}
	return uuid.UUID{}
}

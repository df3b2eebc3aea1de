package testenv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Delivery is one record as it arrived at a [Consumer].
type Delivery struct {
	*kgo.Record
	// EventID is the header x-event-id, empty when it is missing.
	EventID string
	// Seq is the sequence number in the payload, 0 when there is none.
	Seq int
	// Received is the time of arrival.
	Received time.Time
}

// Header returns the value of a record header, and whether it is there.
func (d Delivery) Header(name string) (string, bool) {
	for _, h := range d.Headers {
		if h.Key == name {
			return string(h.Value), true
		}
	}
	return "", false
}

// Consumer collects all records of some topics, from their beginning.
type Consumer struct {
	client *kgo.Client

	mu         sync.Mutex
	deliveries []Delivery
	err        error         // the last error of a fetch, for messages
	changed    chan struct{} // closed and replaced at every arrival
}

// Consume starts a consumer that stops when the test ends.
func Consume(tb testing.TB, brokers []string, topics ...string) *Consumer {
	tb.Helper()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(brokers...),
		kgo.ConsumeTopics(topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.MetadataMinAge(100*time.Millisecond),
	)
	if err != nil {
		tb.Fatal(err)
	}
	c := &Consumer{client: client, changed: make(chan struct{})}
	var wg sync.WaitGroup
	wg.Go(c.run)
	tb.Cleanup(func() {
		client.Close()
		wg.Wait()
	})
	return c
}

func (c *Consumer) run() {
	for {
		fetches := c.client.PollFetches(context.Background())
		if fetches.IsClientClosed() {
			return
		}
		now := time.Now()
		c.mu.Lock()
		fetches.EachError(func(topic string, partition int32, err error) {
			c.err = fmt.Errorf("fetch %s/%d: %w", topic, partition, err)
		})
		fetches.EachRecord(func(r *kgo.Record) {
			d := Delivery{Record: r, Received: now}
			d.EventID, _ = d.Header("x-event-id")
			var payload struct{ Seq int }
			if json.Unmarshal(r.Value, &payload) == nil {
				d.Seq = payload.Seq
			}
			c.deliveries = append(c.deliveries, d)
		})
		close(c.changed)
		c.changed = make(chan struct{})
		c.mu.Unlock()
	}
}

// Deliveries returns what arrived so far, in order of arrival.
func (c *Consumer) Deliveries() []Delivery {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.deliveries)
}

// Wait returns once the condition holds for what arrived, which it looks at
// after every arrival, or with the error of ctx.
func (c *Consumer) Wait(ctx context.Context, cond func([]Delivery) bool) error {
	for {
		c.mu.Lock()
		// Capped, so that the condition cannot overwrite what arrives next.
		deliveries, changed, err := slices.Clip(c.deliveries), c.changed, c.err
		c.mu.Unlock()
		if cond(deliveries) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%w after %d records", ctx.Err(), len(deliveries)), err)
		}
	}
}

// WaitFor waits until n different events arrived and returns all deliveries.
// It ends the test when they do not come within the deadline of [Eventually].
func (c *Consumer) WaitFor(tb testing.TB, n int) []Delivery {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), waitTimeout)
	defer cancel()
	seen, looked := map[string]bool{}, 0
	err := c.Wait(ctx, func(deliveries []Delivery) bool {
		for _, d := range deliveries[looked:] {
			seen[d.EventID] = true
		}
		looked = len(deliveries)
		return len(seen) >= n
	})
	if err != nil {
		tb.Fatalf("waiting for %d events, got %d: %v", n, len(seen), err)
	}
	return c.Deliveries()
}

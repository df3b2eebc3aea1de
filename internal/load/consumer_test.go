package load

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

func TestConsumerStrikesOffWhatTheTopicsHold(t *testing.T) {
	t.Parallel()
	brokers := testenv.Brokers(t)
	topics := []string{testenv.Topic(t, brokers, 3), testenv.Topic(t, brokers, 1)}
	ledger := NewLedger()
	var records []*kgo.Record
	for i := range 20 {
		event := Event{ID: uuid.New(), Key: string(rune('a' + i)), Seq: 1, Topic: topics[i%2]}
		ledger.Sending(event, time.Now())
		ledger.Committed(event.ID, time.Now())
		records = append(records, record(event.Topic, event.Key, event.ID.String()))
	}
	// One repeat, one without a usable id.
	records = append(records, record(topics[0], "a", string(records[0].Headers[0].Value)), record(topics[1], "b", "none"))
	produce(t, brokers, records...)

	consumer, err := NewConsumer(brokers, topics, ledger)
	if err != nil {
		t.Fatal(err)
	}
	var shown atomic.Int64
	consumer.OnRecord = func(*kgo.Record, time.Duration) { shown.Add(1) }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- consumer.Run(ctx) }()
	defer consumer.Close()
	<-consumer.Ready()
	if err := ledger.Await(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := consumer.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("a stop is no error: %v", err)
	}
	want := Counts{Committed: 20, Consumed: 20, Duplicates: 1, Unknown: 1}
	if got := ledger.Report().Counts; got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if shown.Load() != 22 {
		t.Errorf("OnRecord saw %d records, want 22", shown.Load())
	}
}

func record(topic, key, id string) *kgo.Record {
	return &kgo.Record{Topic: topic, Key: []byte(key), Headers: []kgo.RecordHeader{{Key: "x-event-id", Value: []byte(id)}}}
}

func produce(t *testing.T, brokers []string, records ...*kgo.Record) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

package demo

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

func prepare(t *testing.T) *Stage {
	t.Helper()
	stage, err := Prepare(t.Context(), Servers{DatabaseURL: testenv.Database(t), Brokers: testenv.Brokers(t)}, io.Discard, testenv.Logs(t).Logger)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stage.Close(); err != nil {
			t.Error(err)
		}
	})
	return stage
}

var plan = Plan{Rate: 400, Duration: 200 * time.Millisecond, Display: &Display{Out: io.Discard}}

// A naive relay that publishes each row twice, and the newest first.
func TestRunSeesWhatARelayDoesWrong(t *testing.T) {
	t.Parallel()
	stage := prepare(t)
	summary, err := stage.Run(t.Context(), plan, func(ctx context.Context, ready func()) error {
		ready()
		return stage.publishBackwards(ctx, t)
	})
	if err != nil {
		t.Fatal(err)
	}
	if summary.Consumed != 80 || summary.Duplicates != 80 || summary.Lost != 0 || summary.OutOfOrder == 0 || !summary.Broken() {
		t.Errorf("got %+v, want 80 events, all twice, some out of order", summary)
	}
}

func (s *Stage) publishBackwards(ctx context.Context, t *testing.T) error {
	pool := testenv.Pool(t, s.DatabaseURL)
	// Only once the last order is placed is there something to turn around.
	testenv.Eventually(t, "all orders are placed", func() bool {
		var n int
		return pool.QueryRow(ctx, "SELECT count(*) FROM "+s.Table.Sanitize()).Scan(&n) == nil && n == 80
	})
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Brokers...))
	if err != nil {
		return err
	}
	defer client.Close()
	for range 2 {
		// The demo stops its relay as soon as all events have arrived once.
		ctx := context.WithoutCancel(ctx)
		rows, err := pool.Query(ctx, "SELECT event_id::text, partition_key FROM "+s.Table.Sanitize()+" ORDER BY id DESC")
		if err != nil {
			return err
		}
		_, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) {
			var id, key string
			if err := row.Scan(&id, &key); err != nil {
				return struct{}{}, err
			}
			return struct{}{}, client.ProduceSync(ctx, &kgo.Record{
				Topic: s.Topic, Key: []byte(key), Headers: []kgo.RecordHeader{{Key: "x-event-id", Value: []byte(id)}},
			}).FirstErr()
		})
		if err != nil {
			return err
		}
	}
	<-ctx.Done()
	return nil
}

func TestRunFailsWithTheRelay(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		ready bool
	}{
		{"before it was ready", false},
		{"while orders are written", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			stage, broken := prepare(t), errors.New("broken")
			_, err := stage.Run(t.Context(), plan, func(_ context.Context, ready func()) error {
				if tt.ready {
					ready()
				}
				return broken
			})
			if !errors.Is(err, broken) {
				t.Errorf("got %v, want the relay's error", err)
			}
		})
	}
}

func TestPrepareThatFailsLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	database := testenv.Database(t)
	// A Kafka that allows nothing: the topic comes last of what is made.
	kafka := testenv.FakeKafka(t, kfake.EnableACLs())
	_, err := Prepare(t.Context(), Servers{DatabaseURL: database, Brokers: kafka.ListenAddrs()}, io.Discard, testenv.Logs(t).Logger)
	if err == nil || !strings.Contains(err.Error(), "create topic") || !strings.Contains(err.Error(), "the right to create topics") {
		t.Fatalf("got %v, want an error that says what failed", err)
	}
	var schemas int
	if err := testenv.Pool(t, database).QueryRow(t.Context(), "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'outbox_demo%'").Scan(&schemas); err != nil {
		t.Fatal(err)
	}
	if schemas != 0 {
		t.Error("a schema is left behind")
	}
}

package testenv_test

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestInsertKeepsTheOrderOfItsEventsAndFillsInDefaults(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	testenv.OutboxTable(t, url)
	pool := testenv.Pool(t, url)
	events := testenv.Sequence("shop.order.confirmed", 500, "a", "b")
	events[0].EventID = "01890a5d-ac96-774b-bcce-b302099a8057"
	ids := testenv.Insert(t, pool, events...)
	if len(ids) != 500 || ids[0] != events[0].EventID {
		t.Fatalf("got %d ids, the first %s", len(ids), ids[0])
	}

	var ordered bool
	err := pool.QueryRow(t.Context(), `
		SELECT array_agg(event_id::text ORDER BY id) = $1 AND bool_and(aggregate_id = partition_key)
			AND array_agg((payload->>'seq')::int ORDER BY id) = array_agg(n ORDER BY n)
		FROM outbox_event FULL JOIN generate_series(1, 500) n ON (payload->>'seq')::int = n`, ids).Scan(&ordered)
	if err != nil {
		t.Fatal(err)
	}
	if !ordered {
		t.Error("rows are not those that were inserted, in their order")
	}
}

func TestDatabasesAreSeparateAndTablesCanHaveSchemas(t *testing.T) {
	t.Parallel()
	first, second := testenv.Database(t), testenv.Database(t)
	if first == second {
		t.Fatal("two databases with one URL")
	}
	testenv.OutboxTable(t, first)
	testenv.OutboxTable(t, second)
	testenv.OutboxTable(t, second, "billing", "events")
	pool := testenv.Pool(t, second)
	if _, err := testenv.InsertInto(t.Context(), pool, []string{"billing", "events"}, testenv.Event{Topic: "a.b.c"}); err != nil {
		t.Fatal(err)
	}
	if _, err := testenv.InsertInto(t.Context(), pool, []string{"nowhere"}, testenv.Event{}); err == nil {
		t.Error("insert into a table that does not exist succeeded")
	}
}

func TestConsumerReceivesWhatWasProducedFromTheBeginning(t *testing.T) {
	t.Parallel()
	clusters := map[string][]string{
		"shared": testenv.Brokers(t),
		"own":    testenv.FakeKafka(t).ListenAddrs(),
	}
	for name, brokers := range clusters {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := testenv.Topic(t, brokers, 3, "max.message.bytes=100000")
			if parts := strings.Split(topic, "."); len(parts) != 3 {
				t.Errorf("topic %q is not of the form service.aggregate.event", topic)
			}
			client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			record := func(id string, seq int) *kgo.Record {
				return &kgo.Record{
					Topic: topic, Key: []byte("k"), Value: []byte(testenv.Payload(seq)),
					Headers: []kgo.RecordHeader{{Key: "x-event-id", Value: []byte(id)}},
				}
			}
			if err := client.ProduceSync(t.Context(), record("one", 1), record("one", 1), record("two", 2)).FirstErr(); err != nil {
				t.Fatal(err)
			}

			consumer := testenv.Consume(t, brokers, topic)
			got := consumer.WaitFor(t, 2)
			if len(got) != 3 || got[2].EventID != "two" || got[2].Seq != 2 {
				t.Errorf("got %d deliveries: %+v", len(got), got)
			}
			if n := consumer.CheckAtLeastOnce(t, []string{"one", "two"}); n != 1 {
				t.Errorf("%d repeats, want 1", n)
			}
			// A record that comes later wakes the waiting consumer.
			if err := client.ProduceSync(t.Context(), record("three", 3)).FirstErr(); err != nil {
				t.Fatal(err)
			}
			consumer.WaitFor(t, 3)
		})
	}
}

func TestReportFindsEachKindOfFault(t *testing.T) {
	t.Parallel()
	delivery := func(id, key string, seq int) testenv.Delivery {
		return testenv.Delivery{Record: &kgo.Record{Topic: "a.b.c", Key: []byte(key)}, EventID: id, Seq: seq}
	}
	inserted := []string{"1", "2", "3", "4"}
	tests := map[string]struct {
		deliveries                         []testenv.Delivery
		lost, unknown, repeats, outOfOrder int
	}{
		"all once and in order": {
			deliveries: []testenv.Delivery{delivery("1", "a", 1), delivery("3", "b", 3), delivery("2", "a", 2), delivery("4", "b", 4)},
		},
		"nothing arrived": {lost: 4},
		"a repeat of an earlier event is no disorder": {
			deliveries: []testenv.Delivery{delivery("1", "a", 1), delivery("2", "a", 2), delivery("1", "a", 1), delivery("3", "a", 3), delivery("4", "a", 4)},
			repeats:    1,
		},
		"an event overtook another of its key": {
			deliveries: []testenv.Delivery{delivery("1", "a", 1), delivery("3", "a", 3), delivery("2", "a", 2), delivery("4", "a", 4)},
			outOfOrder: 1,
		},
		"an event that was rolled back": {
			deliveries: []testenv.Delivery{delivery("1", "a", 1), delivery("2", "a", 2), delivery("3", "a", 3), delivery("4", "a", 4), delivery("9", "c", 1)},
			unknown:    1,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := testenv.Compare(test.deliveries, inserted)
			if len(r.Lost) != test.lost || len(r.Unknown) != test.unknown || r.Duplicates != test.repeats || len(r.Disorder) != test.outOfOrder {
				t.Errorf("got %+v", r)
			}
		})
	}
}

func TestLogsRememberRecordsWithTheirAttributes(t *testing.T) {
	t.Parallel()
	var logger *slog.Logger
	t.Run("recorded", func(t *testing.T) {
		logs := testenv.Logs(t)
		logger = logs.Logger
		go logger.With("topic", "a.b.c").WithGroup("row").Warn("refused", "id", 7)
		logger.Debug("other")
		entry := logs.WaitFor(t, "refused")
		if entry.Level != slog.LevelWarn || entry.Attrs["topic"] != "a.b.c" || entry.Attrs["row.id"] != int64(7) {
			t.Errorf("got %+v", entry)
		}
		if n := len(logs.Entries()); n != 2 {
			t.Errorf("%d entries, want 2", n)
		}
		if messages := logs.Entries("other", "nothing"); len(messages) != 1 {
			t.Errorf("filtered entries: %+v", messages)
		}
	})
	logger.Info("a log after the test's end must not panic")
}

func TestSequenceDealsEventsToKeysInTurn(t *testing.T) {
	t.Parallel()
	var keys []string
	for _, e := range testenv.Sequence("a.b.c", 5, "x", "y") {
		keys = append(keys, e.Key)
	}
	if want := []string{"x", "y", "x", "y", "x"}; !slices.Equal(keys, want) {
		t.Errorf("keys %v, want %v", keys, want)
	}
}

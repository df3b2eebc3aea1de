package testenv

import (
	"context"
	"crypto/rand"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// RealKafka reports whether the tests run against a real broker.
func RealKafka() bool { return os.Getenv("KAFKA_BROKERS") != "" }

// sharedKafka is the in-process cluster of tests that need no faults.
var sharedKafka = sync.OnceValues(func() ([]string, error) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3))
	if err != nil {
		return nil, err
	}
	onExit(func() error {
		cluster.Close()
		return nil
	})
	return cluster.ListenAddrs(), nil
})

// Brokers returns the addresses of the Kafka that all tests share: those of
// KAFKA_BROKERS, or else three brokers inside this process. Topics are never
// created by themselves on the latter.
func Brokers(tb testing.TB) []string {
	tb.Helper()
	if brokers := os.Getenv("KAFKA_BROKERS"); brokers != "" {
		return strings.Split(brokers, ",")
	}
	brokers, err := sharedKafka()
	if err != nil {
		tb.Fatalf("start Kafka for tests: %v", err)
	}
	return brokers
}

// FakeKafka returns a Kafka of the test's own inside this process, for tests
// that make it fail. It has one broker unless an option says otherwise.
func FakeKafka(tb testing.TB, opts ...kfake.Opt) *kfake.Cluster {
	tb.Helper()
	cluster, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
	if err != nil {
		tb.Fatalf("start Kafka for test: %v", err)
	}
	tb.Cleanup(cluster.Close)
	return cluster
}

// Topic creates a topic with a name of its own, of the form
// service.aggregate.event, and deletes it when the test ends. Configs are
// topic settings such as max.message.bytes=1000.
func Topic(tb testing.TB, brokers []string, partitions int32, configs ...string) string {
	tb.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		tb.Fatal(err)
	}
	defer client.Close()
	settings := make(map[string]*string, len(configs))
	for _, config := range configs {
		name, value, ok := strings.Cut(config, "=")
		if !ok {
			tb.Fatalf("topic setting %q is not of the form name=value", config)
		}
		settings[name] = &value
	}
	topic := "test-" + strings.ToLower(rand.Text()) + ".order.confirmed"
	// -1: the cluster's own replication factor.
	if _, err := kadm.NewClient(client).CreateTopic(tb.Context(), partitions, -1, settings, topic); err != nil {
		tb.Fatalf("create topic %s: %v", topic, err)
	}
	tb.Cleanup(func() { deleteTopic(tb, brokers, topic) })
	return topic
}

// deleteTopic keeps a shared broker small. It reports nothing: the test may
// have deleted the topic, or stopped the broker, itself.
func deleteTopic(tb testing.TB, brokers []string, topic string) {
	tb.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RequestRetries(1))
	if err != nil {
		tb.Error(err)
		return
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	_, _ = kadm.NewClient(client).DeleteTopic(ctx, topic)
}

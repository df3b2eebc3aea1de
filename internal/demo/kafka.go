package demo

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

const partitions = 6

// openKafka starts an in-memory broker unless brokers are given, and makes the
// topic.
func (s *Stage) openKafka(ctx context.Context) error {
	if len(s.Brokers) == 0 {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
		if err != nil {
			return fmt.Errorf("start an in-memory Kafka: %w; use --brokers to run the demo on a cluster of your own", err)
		}
		s.onClose(func(context.Context) error {
			cluster.Close()
			return nil
		})
		s.Brokers = cluster.ListenAddrs()
	}

	client, err := kgo.NewClient(kgo.SeedBrokers(s.Brokers...), kgo.ClientID("outbox-demo"))
	if err != nil {
		return fmt.Errorf("make a Kafka client: %w", err)
	}
	s.onClose(func(context.Context) error {
		client.Close()
		return nil
	})
	admin := kadm.NewClient(client)
	const brokersDefault = -1 // replication as the cluster does it by default
	if _, err := admin.CreateTopic(ctx, partitions, brokersDefault, nil, s.Topic); err != nil {
		return fmt.Errorf("create topic %s on %v: %w; the demo needs brokers that it can reach, and the right to create topics", s.Topic, s.Brokers, err)
	}
	s.onClose(func(ctx context.Context) error {
		if _, err := admin.DeleteTopic(ctx, s.Topic); err != nil {
			return fmt.Errorf("topic %s is left behind, delete it: %w", s.Topic, err)
		}
		return nil
	})
	return nil
}

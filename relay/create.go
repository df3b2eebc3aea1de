package relay

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// topicCreation makes topics that are missing, if the settings say so. Topics
// are not arbitrary, so by default a missing one is a mistake to be told of.
type topicCreation struct {
	admin       *kadm.Client
	on          bool
	partitions  int32
	replication int16
}

func newTopicCreation(cfg *Config, client *kgo.Client) topicCreation {
	const clusterDefault = -1
	c := topicCreation{admin: kadm.NewClient(client), on: cfg.CreateTopics, partitions: clusterDefault, replication: clusterDefault}
	if cfg.TopicPartitions > 0 {
		c.partitions = int32(cfg.TopicPartitions)
	}
	if cfg.TopicReplication > 0 {
		c.replication = int16(cfg.TopicReplication)
	}
	return c
}

// topic creates one. Without the setting it returns that the topic is unknown.
// One that exists by now is no error.
func (c *topicCreation) topic(ctx context.Context, name string) error {
	if !c.on {
		return kerr.UnknownTopicOrPartition
	}
	_, err := c.admin.CreateTopic(ctx, c.partitions, c.replication, nil, name)
	if err == nil || errors.Is(err, kerr.TopicAlreadyExists) {
		return nil
	}
	return fmt.Errorf("create topic %s: %w", name, err)
}

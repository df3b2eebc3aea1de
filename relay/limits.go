package relay

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// defaultMaxMessageBytes is what a broker accepts unless configured
	// otherwise (1 MiB and the log overhead). It is assumed where the relay may
	// not ask.
	defaultMaxMessageBytes = 1_000_012
	// limitAge is how long a limit is believed, and limitDoubt how long when a
	// record does not fit: the topic may just have been given a higher one.
	limitAge      = 5 * time.Minute
	limitDoubt    = time.Second
	describeLimit = 2 * time.Second
)

// topicLimits knows max.message.bytes of the topics a producer has met.
type topicLimits struct {
	admin    *kadm.Client
	producer *kgo.Client

	mu     sync.Mutex
	topics map[string]topicLimit
}

type topicLimit struct {
	bytes  int
	asOf   time.Time
	forced bool
}

func newTopicLimits(admin *kgo.Client) *topicLimits {
	return &topicLimits{admin: kadm.NewClient(admin), topics: map[string]topicLimit{}}
}

func (l *topicLimits) of(topic string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t, ok := l.topics[topic]; ok {
		return t.bytes
	}
	return defaultMaxMessageBytes
}

// batchMaxBytes is called by the producer, which keeps the answer for as long
// as it knows the topic, and refuses to produce outside of these bounds.
func (l *topicLimits) batchMaxBytes(topic string) int32 {
	return int32(min(max(l.of(topic), 512), 1<<30))
}

// learn asks for the limits that are unknown, old, or in doubt. If the cluster
// does not answer, or not to this user, the default is assumed for a while.
func (l *topicLimits) learn(ctx context.Context, events []event) {
	ask := l.unknown(events)
	if len(ask) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, describeLimit)
	defer cancel()
	configs, err := l.admin.DescribeTopicConfigs(ctx, ask...)
	answered := map[string]int{}
	if err == nil {
		for _, c := range configs {
			if bytes, ok := maxMessageBytes(c); ok {
				answered[c.Name] = bytes
			}
		}
	}
	now := time.Now()
	var changed []string
	l.mu.Lock()
	for _, topic := range ask {
		bytes, ok := answered[topic]
		old, known := l.topics[topic]
		switch {
		case !ok && known:
			bytes = old.bytes
		case !ok:
			bytes = defaultMaxMessageBytes
		}
		if known && old.bytes != bytes {
			changed = append(changed, topic)
		}
		l.topics[topic] = topicLimit{bytes: bytes, asOf: now}
	}
	l.mu.Unlock()
	// The producer asked once and remembers. Nothing is buffered now, so
	// nothing is lost by making it start over with the topic.
	l.producer.PurgeTopicsFromProducing(changed...)
}

func (l *topicLimits) unknown(events []event) []string {
	now := time.Now()
	seen := map[string]bool{}
	var ask []string
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range events {
		e := &events[i]
		if seen[e.topic] || !topicNameValid(e.topic) {
			continue
		}
		t, known := l.topics[e.topic]
		age := now.Sub(t.asOf)
		// The payload alone is compared: close enough to ask again.
		doubt := len(e.payload)+doubtMargin > t.bytes && age > limitDoubt
		if !known || t.forced || age > limitAge || doubt {
			seen[e.topic] = true
			ask = append(ask, e.topic)
		}
	}
	return ask
}

const doubtMargin = 4096

// forget has the topics of refused events asked for again.
func (l *topicLimits) forget(events []event, refused []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, i := range refused {
		if t, ok := l.topics[events[i].topic]; ok {
			t.forced = true
			l.topics[events[i].topic] = t
		}
	}
}

func maxMessageBytes(c kadm.ResourceConfig) (int, bool) {
	if c.Err != nil {
		return 0, false
	}
	for _, config := range c.Configs {
		if config.Key == "max.message.bytes" && config.Value != nil {
			n, err := strconv.Atoi(*config.Value)
			return n, err == nil
		}
	}
	return 0, false
}

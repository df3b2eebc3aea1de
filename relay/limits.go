package relay

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
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
	// record did not fit: the topic may have been given another one.
	limitAge   = 5 * time.Minute
	limitDoubt = time.Second
	// describeTimeout bounds a question, for which a claim may have to wait.
	describeTimeout = time.Second
)

// topicLimits knows max.message.bytes of the topics that were published to.
type topicLimits struct {
	admin *kadm.Client
	// generation counts the changes.
	generation atomic.Int64

	mu     sync.Mutex
	topics map[string]topicLimit
}

type topicLimit struct {
	bytes   int
	asOf    time.Time
	doubted bool
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

// batchMaxBytes is called by a producer, which keeps the answer for as long as
// it knows the topic, and refuses to produce outside of these bounds.
func (l *topicLimits) batchMaxBytes(topic string) int32 {
	return int32(min(max(l.of(topic), 512), 1<<30))
}

// doubt has a topic asked about again.
func (l *topicLimits) doubt(topic string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.topics[topic]
	t.doubted = true
	l.topics[topic] = t
}

// learn asks about topics that are met for the first time.
func (l *topicLimits) learn(ctx context.Context, events []event) {
	seen := map[string]bool{}
	var ask []string
	l.mu.Lock()
	for i := range events {
		topic := events[i].topic
		if seen[topic] {
			continue
		}
		seen[topic] = true
		if _, known := l.topics[topic]; !known && topicNameValid(topic) {
			ask = append(ask, topic)
		}
	}
	l.mu.Unlock()
	l.ask(ctx, ask)
}

// refresh asks about topics whose limit is old or in doubt.
func (l *topicLimits) refresh(ctx context.Context) {
	now := time.Now()
	var ask []string
	l.mu.Lock()
	for topic, t := range l.topics {
		if age := now.Sub(t.asOf); age > limitAge || t.doubted && age > limitDoubt {
			ask = append(ask, topic)
		}
	}
	l.mu.Unlock()
	l.ask(ctx, ask)
}

// ask describes topics. If the cluster does not answer, or not to this user,
// what is known stays, or the default is assumed.
func (l *topicLimits) ask(ctx context.Context, topics []string) {
	if len(topics) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, describeTimeout)
	defer cancel()
	answered := map[string]int{}
	if configs, err := l.admin.DescribeTopicConfigs(ctx, topics...); err == nil {
		for _, c := range configs {
			if bytes, ok := maxMessageBytes(c); ok {
				answered[c.Name] = bytes
			}
		}
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, topic := range topics {
		t, known := l.topics[topic]
		bytes, ok := answered[topic]
		switch {
		case !ok && !known:
			bytes = defaultMaxMessageBytes
		case !ok:
			bytes = t.bytes
		}
		if known && bytes != t.bytes {
			l.generation.Add(1)
		}
		l.topics[topic] = topicLimit{bytes: bytes, asOf: now}
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

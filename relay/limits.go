package relay

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
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
	assumed bool // Kafka did not answer
}

func newTopicLimits(admin *kgo.Client) *topicLimits {
	return &topicLimits{admin: kadm.NewClient(admin), topics: map[string]topicLimit{}}
}

func (l *topicLimits) of(topic string) topicLimit {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t, ok := l.topics[topic]; ok {
		return t
	}
	return topicLimit{bytes: defaultMaxMessageBytes, assumed: true}
}

// clientLimits are the limits as one client knows them: it asks once for each
// topic and remembers, and what is handed to it has to be held against the same.
type clientLimits struct {
	all   *topicLimits
	known sync.Map // topic to topicLimit
}

func (l *clientLimits) of(topic string) topicLimit {
	if limit, ok := l.known.Load(topic); ok {
		return limit.(topicLimit)
	}
	limit, _ := l.known.LoadOrStore(topic, l.all.of(topic))
	return limit.(topicLimit)
}

// batchMaxBytes is called by the client, which refuses to produce outside of
// these bounds.
func (l *clientLimits) batchMaxBytes(topic string) int32 {
	return int32(min(max(l.of(topic).bytes, 512), 1<<30))
}

// doubt has a topic asked about again.
func (l *topicLimits) doubt(topic string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t, known := l.topics[topic]; known {
		t.doubted = true
		l.topics[topic] = t
	}
}

// learn asks about topics that are met for the first time, and about those with
// a record that may not fit: a row that is too large is not tried again by
// itself, so the limit that it is held against must be today's. It returns the
// topics that do not exist: a client that was handed their records would take
// half a second to say so, and the claim's other rows would wait with them.
func (l *topicLimits) learn(ctx context.Context, events []event) (missing map[string]bool) {
	seen := map[string]bool{}
	var ask []string
	l.mu.Lock()
	for i := range events {
		topic := events[i].topic
		if seen[topic] {
			continue
		}
		t, known := l.topics[topic]
		if known && events[i].atMost() <= t.bytes {
			continue
		}
		seen[topic] = true
		if topicNameValid(topic) {
			ask = append(ask, topic)
		}
	}
	l.mu.Unlock()
	return l.ask(ctx, ask)
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
// what is known stays, or the default is assumed. Of a topic that does not exist
// nothing is known.
func (l *topicLimits) ask(ctx context.Context, topics []string) (missing map[string]bool) {
	if len(topics) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, describeTimeout)
	defer cancel()
	missing = map[string]bool{}
	answered := map[string]int{}
	forbidden := map[string]bool{}
	if configs, err := l.admin.DescribeTopicConfigs(ctx, topics...); err == nil {
		for _, c := range configs {
			if bytes, ok := maxMessageBytes(c); ok {
				answered[c.Name] = bytes
			}
			missing[c.Name] = errors.Is(c.Err, kerr.UnknownTopicOrPartition)
			forbidden[c.Name] = errors.Is(c.Err, kerr.TopicAuthorizationFailed) || errors.Is(c.Err, kerr.ClusterAuthorizationFailed)
		}
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, topic := range topics {
		if missing[topic] {
			delete(l.topics, topic)
			continue
		}
		t, known := l.topics[topic]
		bytes, ok := answered[topic]
		assumed := !ok && !forbidden[topic]
		switch {
		case !ok && !known:
			bytes = defaultMaxMessageBytes
		case !ok:
			bytes, assumed = t.bytes, t.assumed && assumed
		}
		if known && bytes != t.bytes {
			l.generation.Add(1)
		}
		l.topics[topic] = topicLimit{bytes: bytes, asOf: now, assumed: assumed}
	}
	return missing
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

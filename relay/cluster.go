package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// cluster watches over Kafka. While it is out nothing is claimed, so that no
// transaction and no lock is held for the length of an outage; the workers wait
// at the gate, and one prober asks whether the cluster is back.
type cluster struct {
	*condition
	client *kgo.Client
	waits  *waits
	limits *topicLimits
	create topicCreation

	mu       sync.Mutex
	open     chan struct{} // closed while the gate is open
	proof    bool          // a publish or an idle ping failed; only a publish shows recovery
	cause    error         // of that failure
	down     chan struct{} // one slot: the gate was shut
	attempts int
	refuted  time.Time // when one of them last failed
	trials   int       // publishes that failed in a row
	contact  time.Time // of the last publish or ping that worked
	ended    time.Time // when an outage was last over
}

const (
	pingTimeout  = 3 * time.Second
	firstProbe   = 50 * time.Millisecond
	longestProbe = time.Second
	topicsEvery  = 100 * time.Millisecond
	idleProbe    = 5 * time.Second
	// trialTimeout is how long a claim waits for Kafka where the last one
	// waited in vain.
	trialTimeout = time.Second
)

func newCluster(cfg *Config, cond *condition, w *waits) (*cluster, error) {
	client, err := kgo.NewClient(clientOptions(cfg)...)
	if err != nil {
		return nil, fmt.Errorf("build Kafka client: %w", err)
	}
	c := &cluster{
		condition: cond, client: client, waits: w, limits: newTopicLimits(client), create: newTopicCreation(cfg, client),
		open: make(chan struct{}), down: make(chan struct{}, 1), contact: time.Now(),
	}
	c.down <- struct{}{} // shut until a first ping
	return c, nil
}

// pass waits until the gate is open. It returns ctx's error otherwise.
func (c *cluster) pass(ctx context.Context) error {
	c.mu.Lock()
	open := c.open
	c.mu.Unlock()
	select {
	case <-open:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *cluster) isOpen() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gateOpen()
}

// gateOpen is called with the lock held.
func (c *cluster) gateOpen() bool {
	select {
	case <-c.open:
		return true
	default:
		return false
	}
}

// trial tells whether the last publish failed, and how long the next one waits:
// a second at first, longer with each that was in vain, since the cluster may be
// slow and not out.
func (c *cluster) trial() (limit time.Duration, onTrial bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return trialTimeout << min(max(c.trials-1, 0), 10), c.proof
}

// publishFailed shuts the gate until the cluster answers, and wants proof from
// then on: it may answer and still take no records.
//
// What is reported is what the next ping finds, since a publish that timed out
// does not know why; and err, if the ping finds nothing.
//
// A publish that began before an outage was over tells of that outage still, and
// changes nothing.
func (c *cluster) publishFailed(began time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if began.Before(c.ended) {
		return
	}
	c.trials++
	c.refute(err)
}

// refute wants a proof from now on, and shuts the gate until the cluster
// answers. It is called with the lock held.
func (c *cluster) refute(err error) {
	c.proof, c.cause, c.refuted = true, err, time.Now()
	if c.gateOpen() {
		c.open = make(chan struct{})
		c.down <- struct{}{} // its slot is free: the prober took it to open the gate
	}
}

// publishWorked is told when Kafka acknowledged it, which may be long before it
// is told: it proves nothing about a failure since. It reports whether it is a
// proof.
func (c *cluster) publishWorked(ctx context.Context, acked time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if acked.Before(c.refuted) {
		return false
	}
	c.recovered(ctx, acked)
	return true
}

// nothingToPublish says that no unpublished row is left but for those that claims
// leave out. There is nothing to prove then: another relay has published what
// failed here.
func (c *cluster) nothingToPublish(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.proof && c.gateOpen() {
		c.recovered(ctx, time.Now())
	}
}

// recovered is called with the lock held.
func (c *cluster) recovered(ctx context.Context, at time.Time) {
	if c.proof {
		c.ended = at
	}
	c.proof, c.contact = false, at
	c.attempts, c.trials = 0, 0
	c.works(ctx)
}

// run probes the cluster whenever the gate is shut or nothing was published for
// a while, and the topics that wait, until ctx ends.
func (c *cluster) run(ctx context.Context) {
	ticker := time.NewTicker(topicsEvery)
	defer ticker.Stop()
	for {
		select {
		case <-c.down:
			c.probe(ctx)
		case <-ticker.C:
			c.probeTopics(ctx)
			c.limits.refresh(ctx)
			c.probeIdle(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// probe pings until the cluster answers, then opens the gate. The pauses grow
// until a publish has worked: a cluster may answer and still take no records.
func (c *cluster) probe(ctx context.Context) {
	for {
		c.mu.Lock()
		attempts := c.attempts
		c.attempts++
		c.mu.Unlock()
		if attempts > 0 {
			pause := min(longestProbe, firstProbe<<min(attempts-1, 10))
			select {
			case <-time.After(pause/2 + rand.N(pause/2)):
			case <-ctx.Done():
				return
			}
		}
		err := c.ping(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			c.failed(ctx, err)
			continue
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		// Under the lock: a record acknowledged late may have been the proof
		// while the ping was on its way.
		if c.proof {
			c.failed(ctx, c.cause)
		} else {
			c.works(ctx)
		}
		close(c.open)
		return
	}
}

// probeIdle finds an outage that began while there was nothing to publish.
func (c *cluster) probeIdle(ctx context.Context) {
	c.mu.Lock()
	idle := time.Since(c.contact) > idleProbe
	c.mu.Unlock()
	if !idle {
		return
	}
	err := c.ping(ctx)
	if ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	c.contact = time.Now()
	c.mu.Unlock()
	if err != nil {
		c.unreachable(ctx, err)
	}
}

// unreachable is an outage that no publish has met yet. One has to prove the
// recovery nevertheless: a broker that starts answers pings before it takes
// records.
func (c *cluster) unreachable(ctx context.Context, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refute(err)
	c.failed(ctx, err)
}

func (c *cluster) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if err := c.client.Ping(ctx); err != nil {
		return fmt.Errorf("reach a broker: %w", err)
	}
	return nil
}

// probeTopics asks about the waiting topics that are due, outside of any
// transaction: a claim would hold the rows of all other topics while it finds
// out that one is still missing.
func (c *cluster) probeTopics(ctx context.Context) {
	due := c.waits.dueTopics()
	if len(due) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	for _, topic := range due {
		if !topicNameValid(topic) {
			c.waits.topicFailed(ctx, topic, errInvalidTopicName(topic))
			continue
		}
		details, err := kadm.NewClient(c.client).ListTopics(ctx, topic)
		if err != nil {
			return // an outage, not the topic's fault
		}
		err = details[topic].Err
		if errors.Is(err, kerr.UnknownTopicOrPartition) {
			err = c.create.topic(ctx, topic)
		}
		if err != nil {
			c.waits.topicFailed(ctx, topic, err)
			continue
		}
		c.waits.topicOnTrial(topic)
	}
}

func (c *cluster) close() { c.client.Close() }

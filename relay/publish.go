package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

// errBehind is the outcome of a row that was not handed to Kafka, or whose
// acknowledgement does not count, because an earlier row of its key failed.
var errBehind = errors.New("an earlier row of its key failed")

// delivery is one claim on its way through Kafka.
type delivery struct {
	events []event
	order  Order

	mu   sync.Mutex
	errs []error // by event; nil once acknowledged, errPending until decided
}

var errPending = errors.New("not acknowledged yet")

// publisher hands a claim to Kafka. It is an interface so that the order rule
// can be tested against a broker that delays and refuses at will.
type publisher interface {
	// publish sends the events, in order, and waits until each is decided or
	// ctx ends. It reports whether all are decided.
	publish(ctx context.Context, d *delivery) (decided bool)
	// settle waits, without limit but ctx's, for what publish left undecided.
	settle(ctx context.Context, d *delivery) (decided bool)
	close()
}

func newDelivery(events []event, order Order) *delivery {
	d := &delivery{events: events, order: order, errs: make([]error, len(events))}
	for i := range d.errs {
		d.errs[i] = errPending
	}
	return d
}

func (d *delivery) set(i int, err error) {
	d.mu.Lock()
	d.errs[i] = err
	d.mu.Unlock()
}

func (d *delivery) err(i int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.errs[i]
}

// producer publishes the claims of one worker. Each worker has its own, so
// that a flush concerns one claim only.
type producer struct {
	client *kgo.Client
	limits *topicLimits
}

// clientOptions are those of every Kafka client of the relay.
func clientOptions(cfg *Config) []kgo.Opt {
	return []kgo.Opt{
		kgo.SeedBrokers(cfg.Brokers...),
		kgo.ClientID(cfg.ClientID),
		kgo.DialTimeout(3 * time.Second),
		// The default of 2.5 s keeps an unknown topic in question for 20 s,
		// which looks like an outage; with 100 ms it takes 0.4 s.
		kgo.MetadataMinAge(100 * time.Millisecond),
		// Below the ten minutes after which brokers close idle connections: a
		// connection closed from their side would be found out by a failed
		// produce.
		kgo.ConnIdleTimeout(9 * time.Minute),
		kgo.RetryBackoffFn(retryBackoff),
	}
}

func newProducer(cfg *Config, admin *kgo.Client) (*producer, error) {
	limits := newTopicLimits(admin)
	opts := append(
		clientOptions(cfg),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerBatchCompression(codecs[cfg.Compression]),
		// The whole claim is buffered, then flushed. If it were sent while it
		// is being buffered, a record that the broker refuses would fail alone
		// and let later records of its key through before it. Flushed at once,
		// everything behind it in its partition fails with it.
		kgo.ManualFlushing(),
		kgo.MaxBufferedRecords(cfg.BatchMax+1),
		kgo.MaxBufferedBytes(0),
		kgo.RecordDeliveryTimeout(cfg.PublishTimeout),
		kgo.ProduceRequestTimeout(min(cfg.PublishTimeout, 10*time.Second)),
		kgo.RequestTimeoutOverhead(5*time.Second),
		// The broker's limit is for a batch, not for a record: 50 rows of 5 kB
		// in one batch are refused by a topic of 100 kB.
		kgo.ProducerBatchMaxBytesFn(limits.batchMaxBytes),
	)
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("build Kafka producer: %w", err)
	}
	limits.producer = client
	return &producer{client: client, limits: limits}, nil
}

func retryBackoff(tries int) time.Duration {
	const first, longest = 10 * time.Millisecond, time.Second
	backoff := min(longest, first<<min(max(tries-1, 0), 10))
	return backoff + rand.N(backoff)
}

func (p *producer) close() { p.client.Close() }

func (p *producer) publish(ctx context.Context, d *delivery) bool {
	p.limits.learn(ctx, d.events)
	p.send(d, allIndexes(d))
	if p.client.Flush(ctx) != nil {
		return false
	}
	return p.retryAlone(ctx, d)
}

func (p *producer) settle(ctx context.Context, d *delivery) bool {
	return p.client.Flush(ctx) == nil
}

// send hands events to the client. It decides at once about those that must
// not be handed over: invalid topic names, records above the topic's limit, and
// everything behind them in their key. The client refuses a record that is too
// large too, but does not stop those behind it.
func (p *producer) send(d *delivery, indexes []int) {
	ended := map[string]bool{}
	for _, i := range indexes {
		e := &d.events[i]
		if ended[e.key] {
			d.set(i, errBehind)
			continue
		}
		record, err := p.admit(e)
		if err != nil {
			d.set(i, err)
			ended[e.key] = d.order == OrderKey
			continue
		}
		// Never a context that can be cancelled: the client may then drop a
		// record that the broker has. The promise only notes the outcome,
		// since it runs on the client's goroutine.
		p.client.Produce(context.Background(), record, func(_ *kgo.Record, err error) { d.set(i, err) })
	}
}

func (p *producer) admit(e *event) (*kgo.Record, error) {
	if !topicNameValid(e.topic) {
		return nil, errInvalidTopicName(e.topic)
	}
	record := e.record()
	if size, limit := e.size(record), p.limits.of(e.topic); size > limit {
		return nil, &tooLargeError{size: size, limit: limit}
	}
	return record, nil
}

// retryAlone sends what the broker refused once more, one record at a time, so
// that a row is blamed only for itself: a batch is refused as a whole, and
// everything behind it in its partition fails with it.
func (p *producer) retryAlone(ctx context.Context, d *delivery) bool {
	refused := d.refused()
	if len(refused) == 0 {
		return true
	}
	p.limits.forget(d.events, refused)
	p.limits.learn(ctx, d.events)
	for _, i := range refused {
		d.set(i, errBehind) // until it is its turn
	}
	ended := map[string]bool{}
	for _, i := range refused {
		key := d.events[i].key
		if ended[key] || ctx.Err() != nil {
			continue
		}
		d.set(i, errPending)
		p.send(d, []int{i})
		if p.client.Flush(ctx) != nil {
			return false
		}
		ended[key] = d.order == OrderKey && d.err(i) != nil
	}
	return true
}

// refused lists the events that the broker refused as part of a batch. Those
// that were never handed over are decided already.
func (d *delivery) refused() []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	var refused []int
	ended := map[string]bool{}
	for i, err := range d.errs {
		if err == nil {
			continue
		}
		key := d.events[i].key
		kind, _ := classify(err)
		_, local := errors.AsType[*tooLargeError](err)
		if kind == kindRow && !local && !ended[key] {
			refused = append(refused, i)
			continue
		}
		ended[key] = ended[key] || d.order == OrderKey
	}
	return refused
}

func allIndexes(d *delivery) []int {
	indexes := make([]int, len(d.events))
	for i := range indexes {
		indexes[i] = i
	}
	return indexes
}

// outcome sorts a decided delivery.
type outcome struct {
	acked []event
	// rows and topics are failures to be blamed; outage is any other.
	rows   []failure
	topics []failure
	outage error
}

type failure struct {
	event event
	err   error
	code  string
}

// outcome takes the acknowledged head of each key. What was acknowledged
// behind a failure is left unmarked and will be repeated in its place.
func (d *delivery) outcome() outcome {
	d.mu.Lock()
	defer d.mu.Unlock()
	var o outcome
	ended := map[string]bool{}
	for i, err := range d.errs {
		e := d.events[i]
		if err == nil {
			if !ended[e.key] {
				o.acked = append(o.acked, e)
			}
			continue
		}
		ended[e.key] = d.order == OrderKey
		if errors.Is(err, errBehind) || errors.Is(err, errPending) {
			continue
		}
		switch kind, code := classify(err); kind {
		case kindRow:
			o.rows = append(o.rows, failure{e, err, code})
		case kindTopic:
			o.topics = append(o.topics, failure{e, err, code})
		default:
			o.outage = err
		}
	}
	return o
}

package relay

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// publisher hands a claim to Kafka. It is an interface so that the order rule
// can be tried against a broker that delays and refuses at will.
type publisher interface {
	// publish sends the events, in order, and waits until each is decided or
	// ctx ends. It reports whether all are decided.
	publish(ctx context.Context, d *delivery) (decided bool)
	// detach returns a function that waits for what publish left undecided,
	// and leaves the publisher free for the next claim.
	detach() (settle func(ctx context.Context))
	close()
}

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

// producer publishes the claims of one worker. Each worker has its own, so
// that a flush concerns one claim only.
//
// Its client is exchanged for a new one, while nothing is buffered, whenever
// what the client remembers may be wrong: after a failure (it never adopts a
// recreated topic's id) and when a topic's limit has changed (it asks for that
// once). Purging the topic from the client would not do: its sequence numbers
// start over under the same producer id, and a broker takes the next batch for
// a repeat of the first one, acknowledges it and does not store it.
type producer struct {
	opts   []kgo.Opt
	limits *topicLimits

	client     *kgo.Client   // nil until the next publish, after an exchange
	known      *clientLimits // that client's
	generation int64         // of the limits when it was made
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

func retryBackoff(tries int) time.Duration {
	const first, longest = 10 * time.Millisecond, time.Second
	backoff := min(longest, first<<min(max(tries-1, 0), 10))
	return backoff + rand.N(backoff)
}

func newProducer(cfg *Config, limits *topicLimits) (*producer, error) {
	p := &producer{limits: limits, opts: append(
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
		// Records that no broker has taken fail before the claim's time is up,
		// so that what became of the others can be marked in its transaction.
		kgo.RecordDeliveryTimeout(cfg.PublishTimeout/2),
		kgo.ProduceRequestTimeout(min(cfg.PublishTimeout, 10*time.Second)),
		kgo.RequestTimeoutOverhead(5*time.Second),
	)}
	if err := p.connect(); err != nil {
		return nil, err
	}
	return p, nil
}

// connect makes a client if there is none that can be trusted.
func (p *producer) connect() error {
	generation := p.limits.generation.Load()
	if p.client != nil && p.generation == generation {
		return nil
	}
	p.close()
	known := &clientLimits{all: p.limits}
	// The broker's limit is for a batch, not for a record: 50 rows of 5 kB in
	// one batch are refused by a topic of 100 kB.
	opts := append(slices.Clone(p.opts), kgo.ProducerBatchMaxBytesFn(known.batchMaxBytes))
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return fmt.Errorf("build Kafka producer: %w", err)
	}
	p.client, p.known, p.generation = client, known, generation
	return nil
}

func (p *producer) close() {
	if p.client != nil {
		p.client.Close()
		p.client = nil
	}
}

func (p *producer) publish(ctx context.Context, d *delivery) bool {
	p.limits.learn(ctx, d.events)
	if err := p.connect(); err != nil {
		for i := range d.events {
			d.set(i, err)
		}
		return true
	}
	p.send(d, allIndexes(d))
	if p.client.Flush(ctx) != nil {
		return false
	}
	if !p.retryAlone(ctx, d) {
		return false
	}
	for i := range d.events {
		if kind, _ := classify(d.err(i)); kind != "" && kind != kindRow {
			p.close()
			break
		}
	}
	return true
}

func (p *producer) detach() func(context.Context) {
	client := p.client
	p.client = nil
	return func(ctx context.Context) {
		_ = client.Flush(ctx) // ctx's end is the only error
		client.Close()
	}
}

// send hands events to the client. It decides at once about those that must
// not be handed over: invalid topic names, records above the topic's limit, and
// everything behind them in their key. The client refuses a record that is too
// large too, but does not stop those behind it.
func (p *producer) send(d *delivery, indexes []int) {
	ended := map[stream]bool{}
	for _, i := range indexes {
		e := &d.events[i]
		if ended[e.stream()] {
			d.set(i, errBehind)
			continue
		}
		record, err := p.admit(e)
		if err != nil {
			d.set(i, err)
			ended[e.stream()] = d.order == OrderKey
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
	if size, limit := e.size(record), p.known.of(e.topic); size > limit.bytes {
		p.limits.doubt(e.topic)
		return nil, &tooLargeError{size: size, limit: limit.bytes, assumed: limit.assumed}
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
	for _, i := range refused {
		p.limits.doubt(d.events[i].topic)
		d.set(i, errBehind) // until it is its turn
	}
	p.limits.refresh(ctx)
	ended := map[stream]bool{}
	for _, i := range refused {
		s := d.events[i].stream()
		if ended[s] || ctx.Err() != nil {
			continue
		}
		d.set(i, errPending)
		p.send(d, []int{i})
		if p.client.Flush(ctx) != nil {
			return false
		}
		ended[s] = d.order == OrderKey && d.err(i) != nil
	}
	return true
}

func allIndexes(d *delivery) []int {
	indexes := make([]int, len(d.events))
	for i := range indexes {
		indexes[i] = i
	}
	return indexes
}

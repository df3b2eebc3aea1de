package relay

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
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

// flushAgain is how long a flush may take before it is begun again. It doubles
// with each.
const flushAgain = 20 * time.Millisecond

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
	staged     *staged       // likewise
	generation int64         // of the limits when it was made

	missing map[string]bool // topics, as of the last publish
}

// clientOptions are those of every Kafka client of the relay.
func clientOptions(cfg *Config) []kgo.Opt {
	return append(
		securityOptions(cfg),
		kgo.SeedBrokers(cfg.Brokers...),
		kgo.ClientID(cfg.ClientID),
		// The default of 2.5 s keeps an unknown topic in question for 20 s,
		// which looks like an outage; with 100 ms it takes 0.4 s.
		kgo.MetadataMinAge(100*time.Millisecond),
		// Below the ten minutes after which brokers close idle connections: a
		// connection closed from their side would be found out by a failed
		// produce.
		kgo.ConnIdleTimeout(9*time.Minute),
		kgo.RetryBackoffFn(retryBackoff),
	)
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
	staged := newStaged()
	opts := append(slices.Clone(p.opts), kgo.ProducerBatchMaxBytesFn(known.batchMaxBytes), kgo.WithHooks(staged))
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return fmt.Errorf("build Kafka producer: %w", err)
	}
	p.client, p.known, p.staged, p.generation = client, known, staged, generation
	return nil
}

func (p *producer) close() {
	if p.client != nil {
		p.client.Close()
		p.client = nil
	}
}

func (p *producer) publish(ctx context.Context, d *delivery) bool {
	p.missing = p.limits.learn(ctx, d.events)
	if err := p.connect(); err != nil {
		for i := range d.events {
			d.set(i, err)
		}
		return true
	}
	p.send(d, allIndexes(d))
	if !p.flush(ctx, d) {
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
		p.hand(d, i, record)
	}
}

// hand gives the record of an event to the client. The promise only notes the
// outcome, since it runs on the client's goroutine.
func (p *producer) hand(d *delivery, i int, record *kgo.Record) {
	staged := p.staged
	staged.add(record)
	// Never a context that can be cancelled: the client may then drop a record
	// that the broker has.
	p.client.Produce(context.Background(), record, func(_ *kgo.Record, err error) {
		d.set(i, err)
		staged.remove(record)
	})
}

// flush sends what was handed to the client, and waits for the answers. It
// reports whether each record has one.
func (p *producer) flush(ctx context.Context, d *delivery) (decided bool) {
	if err := p.staged.wait(ctx); err != nil {
		// Nothing was sent, and nothing may be any more: see staged.
		p.close()
		d.giveUp(errNotSent)
		return true
	}
	// A flush that begins just when the client has learned of a topic passes by
	// its records. The next one does not.
	for again := flushAgain; ; again *= 2 {
		limited, cancel := context.WithTimeout(ctx, again)
		err := p.client.Flush(limited)
		cancel()
		if err == nil || ctx.Err() != nil {
			return err == nil
		}
	}
}

func (p *producer) admit(e *event) (*kgo.Record, error) {
	if !topicNameValid(e.topic) {
		return nil, errInvalidTopicName(e.topic)
	}
	if p.missing[e.topic] {
		return nil, kerr.UnknownTopicOrPartition
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
		if !p.flush(ctx, d) {
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

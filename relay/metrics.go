package relay

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the relay's own. Labels are bounded: topics are those of the
// service's events, all others are lists in this code.
type metrics struct {
	published      *prometheus.CounterVec
	publishErrors  *prometheus.CounterVec
	batches        prometheus.Counter
	batchSize      prometheus.Histogram
	claimSeconds   prometheus.Histogram
	publishSeconds prometheus.Histogram
	markSeconds    prometheus.Histogram
	latency        prometheus.Histogram
	wakes          *prometheus.CounterVec
}

const namespace = "outbox_relay"

var (
	stepBuckets    = prometheus.ExponentialBuckets(0.0001, 2, 17) // 0.1 ms to 6.6 s
	latencyBuckets = prometheus.ExponentialBuckets(0.0005, 2, 21) // 0.5 ms to 9 min
	sizeBuckets    = prometheus.ExponentialBuckets(1, 2, 15)      // 1 to 16384
)

func newMetrics(registry prometheus.Registerer, r *Relay) (*metrics, error) {
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: name, Help: help, Buckets: buckets,
		})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	}
	m := &metrics{
		published:      counters("events_published_total", "Events acknowledged by Kafka and marked.", "topic"),
		publishErrors:  counters("publish_errors_total", "Failed publishes by kind (outage, topic, row) and Kafka's error code.", "kind", "code"),
		batches:        prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: "batches_total", Help: "Claims that held at least one row."}),
		batchSize:      histogram("batch_size", "Rows in a claim.", sizeBuckets),
		claimSeconds:   histogram("claim_seconds", "Time to claim rows, a connection included.", stepBuckets),
		publishSeconds: histogram("publish_seconds", "Time from handing a claim to Kafka to its last acknowledgement.", stepBuckets),
		markSeconds:    histogram("mark_seconds", "Time to mark a claim and commit.", stepBuckets),
		latency:        histogram("event_latency_seconds", "Time from an event's created_at to its acknowledgement.", latencyBuckets),
		wakes:          counters("wakes_total", "What made the relay claim: notify, poll, tick, reconnect. Looks at rest that find no row are not counted.", "source"),
	}
	if registry == nil {
		return m, nil
	}
	if err := registry.Register(collectors{
		m.published, m.publishErrors, m.batches, m.batchSize, m.claimSeconds,
		m.publishSeconds, m.markSeconds, m.latency, m.wakes, newStateCollector(r),
	}); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return m, nil
}

// collectors are registered as one, so that a conflict leaves none behind.
type collectors []prometheus.Collector

func (c collectors) Describe(ch chan<- *prometheus.Desc) {
	for _, one := range c {
		one.Describe(ch)
	}
}

func (c collectors) Collect(ch chan<- prometheus.Metric) {
	for _, one := range c {
		one.Collect(ch)
	}
}

func (m *metrics) batch(rows int) {
	m.batches.Inc()
	m.batchSize.Observe(float64(rows))
}

// eventsPublished counts events that are marked. acked is when Kafka had
// answered.
func (m *metrics) eventsPublished(events []event, acked time.Time) {
	for i := range events {
		e := &events[i]
		m.published.WithLabelValues(e.topic).Inc()
		if !e.createdAt.IsZero() {
			m.latency.Observe(max(0, acked.Sub(e.createdAt).Seconds()))
		}
	}
}

func (m *metrics) failed(o outcome) {
	for kind, failures := range map[failureKind][]failure{kindTopic: o.topics, kindRow: o.rows, kindOutage: o.outage} {
		for _, f := range failures {
			m.publishErrors.WithLabelValues(string(kind), f.code).Inc()
		}
	}
}

// stateCollector exports what Health tells, read when it is scraped. What was
// not sampled is left out: a zero would say that there is no lag.
type stateCollector struct {
	relay                                      *Relay
	armed, listener, sentinel, oldest, pending *prometheus.Desc
	parked, waiting                            *prometheus.Desc
}

func newStateCollector(r *Relay) *stateCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(namespace+"_"+name, help, labels, nil)
	}
	return &stateCollector{
		relay:    r,
		armed:    desc("bell_armed", "1 while this relay sleeps and writers notify."),
		listener: desc("listener_up", "1 while notifications are heard."),
		sentinel: desc("sentinel", "1 on the relay that arms the bell."),
		oldest:   desc("oldest_unpublished_seconds", "Age of the first unpublished row, 0 if there is none."),
		parked:   desc("parked", "Rows that were set aside for an operator, counted up to 100000."),
		waiting:  desc("waiting", "1 for each topic whose rows wait because Kafka does not take them.", "topic"),
		pending:  desc("unpublished", "Estimate of the unpublished rows: exact up to 10000, above it the span of their ids."),
	}
}

func (c *stateCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.armed, c.listener, c.sentinel, c.oldest, c.pending, c.parked, c.waiting} {
		ch <- d
	}
}

func (c *stateCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	flag := func(d *prometheus.Desc, on bool) {
		if on {
			gauge(d, 1)
		} else {
			gauge(d, 0)
		}
	}
	h := c.relay.Health()
	flag(c.armed, h.BellArmed)
	flag(c.listener, h.ListenerUp)
	flag(c.sentinel, h.Sentinel)
	if h.Sampled {
		gauge(c.oldest, h.OldestUnpublished.Seconds())
		gauge(c.pending, float64(h.Unpublished))
		gauge(c.parked, float64(h.ParkedRows))
	}
	for _, t := range h.WaitingTopics {
		ch <- prometheus.MustNewConstMetric(c.waiting, prometheus.GaugeValue, 1, t.Topic)
	}
}

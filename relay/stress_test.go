package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// stressDuration is how long the claimers are tormented: STRESS_DURATION, or
// five seconds.
func stressDuration(t *testing.T) time.Duration {
	t.Helper()
	value := os.Getenv("STRESS_DURATION")
	if value == "" {
		return 5 * time.Second
	}
	d, err := time.ParseDuration(value)
	if err != nil {
		t.Fatalf("STRESS_DURATION: %v", err)
	}
	return d
}

// The order rule is tried against everything at once: eight claimers on
// connections of their own, hot keys, acknowledgements that come late, never or
// after the transaction is gone, refused records, backends terminated at any
// point, and writers that roll back. First deliveries must be in order all the
// same.
func TestOrderRuleHoldsUnderStress(t *testing.T) {
	t.Parallel()
	for name, sliced := range map[string]bool{"all claim from everything": false, "each has a slice and a cursor": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStress(t, OrderKey)
			if sliced {
				s.shareSlices()
			}
			s.run(t, stressDuration(t))
			s.check(t)
			if sliced && !slices.ContainsFunc(s.workers, func(w *worker) bool { return w.cursor.at.id > 0 }) {
				t.Error("no cursor moved: this test does not exercise what it is for")
			}
		})
	}
}

func (s *stress) check(t *testing.T) {
	t.Helper()
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	t.Logf("%d events, %d repeats, %d backends terminated, %d rounds, %d out of order",
		len(s.log.first), s.log.repeats, s.kills.Load(), s.rounds.Load(), s.log.disorder)
	if s.log.disorder > 0 {
		t.Errorf("%d first deliveries out of order", s.log.disorder)
	}
	if got, want := len(s.log.first), int(s.committed.Load()); got != want {
		t.Errorf("%d events delivered, %d were committed", got, want)
	}
	if s.kills.Load() == 0 || s.log.repeats == 0 {
		t.Error("nothing went wrong during the run: it proves nothing")
	}
}

// The same torment without the rule must show disorder, or the test above
// could not fail.
func TestStressShowsDisorderWithoutTheRule(t *testing.T) {
	t.Parallel()
	s := newStress(t, OrderNone)
	s.run(t, min(5*time.Second, stressDuration(t)))
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	t.Logf("%d events, %d out of order", len(s.log.first), s.log.disorder)
	if s.log.disorder == 0 {
		t.Error("plain SKIP LOCKED kept the order: this test does not exercise what it is for")
	}
}

type stress struct {
	fixture   *fixture
	log       *memoryLog
	workers   []*worker
	keys      int
	kills     atomic.Int64
	rounds    atomic.Int64
	committed atomic.Int64
}

const (
	stressClaimers = 8
)

func newStress(t *testing.T, order Order) *stress {
	t.Helper()
	f := newFixture(t)
	f.cfg.Order = order
	f.cfg.BatchSize = 20
	f.cfg.Workers = stressClaimers
	f.cfg.RetryMin, f.cfg.RetryMax = 10*time.Millisecond, 20*time.Millisecond
	f.cfg.MaxAttempts = 1000
	s := &stress{fixture: f, log: newMemoryLog(), keys: 6}
	r, err := New(f.cfg, WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	if r.pool, err = r.newPool(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.pool.Close)
	// Its gate is not asked here: the claimers go on through every outage.
	if r.cluster, err = newCluster(&f.cfg, r.kafka, r.waits); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.cluster.close)
	for i := range stressClaimers {
		s.workers = append(s.workers, &worker{
			r: r, index: i, publisher: &memoryProducer{memoryLog: s.log}, sizing: newSizing(&f.cfg), busy: busyKeys{},
		})
	}
	return s
}

// shareSlices has each claimer keep to its slice of several keys, as under a
// backlog, with claims so small that most come back full.
func (s *stress) shareSlices() {
	s.keys = 4 * stressClaimers
	s.workers[0].r.assisting.Store(1)
	for _, w := range s.workers {
		w.sizing.min, w.sizing.max, w.sizing.size = 1, 2, 1
	}
}

func (s *stress) run(t *testing.T, d time.Duration) {
	t.Helper()
	writing, stopWriting := context.WithTimeout(t.Context(), d)
	defer stopWriting()
	claiming, stopClaiming := context.WithCancel(t.Context())
	defer stopClaiming()

	var writers, others sync.WaitGroup
	for key := range s.keys {
		writers.Go(func() { s.write(writing, t, fmt.Sprintf("key-%d", key)) })
	}
	for _, w := range s.workers {
		others.Go(func() { s.claim(claiming, w) })
	}
	others.Go(func() { s.terminate(writing, t) })
	others.Go(func() { s.retryTopics(claiming) })

	writers.Wait()
	s.fixture.waitDrained(t)
	stopClaiming()
	others.Wait()
}

// write commits the events of one key one after the other, and now and then
// takes its time, or rolls one back, after it drew its id.
func (s *stress) write(ctx context.Context, t *testing.T, key string) {
	conn, err := pgx.Connect(ctx, s.fixture.cfg.DatabaseURL+"&application_name=writer")
	if err != nil {
		t.Errorf("writer: %v", err)
		return
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for seq := 1; ctx.Err() == nil; {
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Errorf("writer: %v", err)
			return
		}
		_, err = testenv.InsertInto(t.Context(), tx, pgx.Identifier{"outbox_event"},
			testenv.Event{Topic: "stress.order.placed", Key: key, Payload: testenv.Payload(seq)})
		if err != nil {
			t.Errorf("writer: %v", err)
			return
		}
		if rand.IntN(4) == 0 {
			// Later ids are committed and claimed meanwhile.
			sleep(ctx, rand.N(20*time.Millisecond))
		}
		if rand.IntN(10) == 0 {
			err = tx.Rollback(t.Context())
		} else if err = tx.Commit(t.Context()); err == nil {
			s.committed.Add(1)
			seq++
		}
		if err != nil {
			t.Errorf("writer: %v", err)
			return
		}
	}
}

func (s *stress) claim(ctx context.Context, w *worker) {
	for ctx.Err() == nil {
		round, err := w.round(ctx, rand.IntN(4) == 0)
		s.rounds.Add(1)
		if w.index == 0 && err == nil {
			err = w.r.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { return w.r.moveLowWater(ctx, conn) })
		}
		if err != nil {
			w.r.low.dropCursors()
		}
		if err != nil || round.Rows == 0 {
			sleep(ctx, rand.N(3*time.Millisecond))
		}
	}
}

// retryTopics lets a topic that failed be claimed again, as the prober does.
func (s *stress) retryTopics(ctx context.Context) {
	waits := s.workers[0].r.waits
	for sleep(ctx, time.Millisecond) {
		for _, topic := range waits.dueTopics() {
			waits.topicOnTrial(topic)
		}
	}
}

// terminate ends relays' backends at random moments.
func (s *stress) terminate(ctx context.Context, t *testing.T) {
	for sleep(ctx, rand.N(20*time.Millisecond)) {
		var n int64
		err := s.fixture.pool.QueryRow(t.Context(), `SELECT count(pg_terminate_backend(pid)) FROM (
			SELECT pid FROM pg_stat_activity
			 WHERE datname = current_database() AND application_name = 'outbox-relay'
			 ORDER BY random() LIMIT 1) victim`).Scan(&n)
		if err != nil {
			t.Errorf("terminate: %v", err)
			return
		}
		s.kills.Add(n)
	}
}

// memoryProducer is one claimer's way to the log.
type memoryProducer struct {
	*memoryLog
	doubt *delivery
}

// memoryLog stands for Kafka: an append-only log for each key, whose answers
// are late, missing, or a refusal that takes everything behind it along, as
// with a partition.
type memoryLog struct {
	mu       sync.Mutex
	first    map[string]bool // by event id
	last     map[string]int  // highest first delivery, by key
	repeats  int
	disorder int
}

func newMemoryLog() *memoryLog {
	return &memoryLog{first: map[string]bool{}, last: map[string]int{}}
}

func (l *memoryLog) append(e *event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first[e.eventID] {
		l.repeats++
		return
	}
	l.first[e.eventID] = true
	var seq int
	if _, err := fmt.Sscanf(string(e.payload), `{"seq": %d}`, &seq); err != nil {
		panic(err)
	}
	if seq < l.last[e.key] {
		l.disorder++
	}
	l.last[e.key] = max(l.last[e.key], seq)
}

func (l *memoryProducer) publish(ctx context.Context, d *delivery) bool {
	sleep(ctx, rand.N(2*time.Millisecond))
	failed := map[string]bool{}
	undecided := rand.IntN(20) == 0
	for i := range d.events {
		e := &d.events[i]
		switch {
		case failed[e.key]:
			d.set(i, kgo.ErrRecordTimeout)
		case rand.IntN(100) == 0:
			failed[e.key] = true
			d.set(i, kgo.ErrRecordTimeout)
		case undecided && rand.IntN(2) == 0:
			l.doubt = d
			return false // the rest is decided when the rows are free again
		default:
			l.append(e)
			d.set(i, nil)
			if rand.IntN(20) == 0 {
				sleep(ctx, rand.N(time.Millisecond))
			}
		}
	}
	return true
}

func (l *memoryProducer) detach() func(context.Context) {
	d := l.doubt
	l.doubt = nil
	return func(ctx context.Context) {
		sleep(ctx, rand.N(20*time.Millisecond))
		failed := map[string]bool{}
		for i := range d.events {
			e := &d.events[i]
			switch err := d.err(i); {
			case errors.Is(err, errPending) && failed[e.key]:
				d.set(i, kgo.ErrRecordTimeout) // with the record before it
			case errors.Is(err, errPending):
				l.append(e)
				d.set(i, nil)
			case err != nil:
				failed[e.key] = true
			}
		}
	}
}

func (l *memoryProducer) close() {}

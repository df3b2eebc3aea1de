package main

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/outbox-relay/outbox-relay/internal/load"
)

// Mixed load and random faults, for as long as SOAK_DURATION says (10 s), of
// the seed SOAK_SEED (a new one each time). Whatever happened meanwhile, at the
// end each event has arrived, in order, no more often than the faults explain,
// and the relays have not grown.
func TestSoak(t *testing.T) {
	buildRelay(t)
	t.Parallel()
	duration, seed := soakSettings(t)
	t.Logf("soak of %s, to be repeated by SOAK_SEED=%d", duration, seed)
	s := newSoak(t)
	s.traffic.consume(t)
	s.traffic.writeMix(rand.New(rand.NewPCG(seed, 3)))

	s.torment(t, soakPlan(seed, duration), duration)

	s.traffic.drain(t)
	s.checkGrowth(t)
	s.endAll(t)
	repeats := s.traffic.verdict(t)
	if repeats > s.repeats {
		t.Errorf("%d repeats, want at most the %d that the faults explain", repeats, s.repeats)
	}
	s.summarize(t, repeats)
	if len(s.done) == 0 {
		t.Error("nothing went wrong during the run: it proves nothing")
	}
}

func soakSettings(t *testing.T) (duration time.Duration, seed uint64) {
	t.Helper()
	duration, seed = 10*time.Second, rand.Uint64N(1_000_000)
	var err error
	if value := os.Getenv("SOAK_DURATION"); value != "" {
		if duration, err = time.ParseDuration(value); err != nil {
			t.Fatalf("SOAK_DURATION: %v", err)
		}
	}
	if value := os.Getenv("SOAK_SEED"); value != "" {
		if seed, err = strconv.ParseUint(value, 10, 64); err != nil {
			t.Fatalf("SOAK_SEED: %v", err)
		}
	}
	return duration, seed
}

// torment does what the plan says, and watches, until the duration is over and
// the last fault is mended. A step that takes long, on a slow machine, puts the
// rest of the plan off, so that faults do not come all at once.
func (s *soak) torment(t *testing.T, plan []fault, duration time.Duration) {
	t.Helper()
	type repair struct {
		at   time.Duration
		mend func()
	}
	var repairs []repair
	var late time.Duration
	s.start, s.warmUp = time.Now(), duration/3
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		began := time.Now()
		elapsed := began.Sub(s.start)
		planned, over := elapsed-late, elapsed >= duration
		switch {
		case len(repairs) > 0 && repairs[0].at <= planned:
			repairs[0].mend()
			repairs = repairs[1:]
			late += time.Since(began)
		case !over && len(plan) > 0 && plan[0].at <= planned:
			if mend := s.begin(t, plan[0]); mend != nil {
				s.done = append(s.done, plan[0].kind)
				repairs = append(repairs, repair{plan[0].at + plan[0].lasts, mend})
				slices.SortFunc(repairs, func(a, b repair) int { return cmp.Compare(a.at, b.at) })
			}
			plan = plan[1:]
			late += time.Since(began)
		case over && len(repairs) == 0:
			s.postgres.up(t)
			s.kafka.up(t)
			return
		default:
			<-tick.C
		}
		s.watch(t)
	}
}

// progress prints what came of the soak so far.
func (s *soak) progress(t *testing.T) {
	t.Helper()
	counts, recent := s.traffic.ledger.Counts(s.latencies)
	s.latencies += len(recent)
	p := load.Percentiles(recent, 50, 99, 100)
	t.Logf("%4s: %d events committed, %d arrived, %d repeats of at most %d, %d out of order; latency p50 %s, p99 %s, max %s; %d faults; %s",
		time.Since(s.start).Round(time.Second), counts.Committed, counts.Consumed, counts.Duplicates, s.repeats, counts.OutOfOrder,
		p[0].Round(time.Millisecond), p[1].Round(time.Millisecond), p[2].Round(time.Millisecond), len(s.done), s.used(t))
}

// summarize tells what was done and what came of it.
func (s *soak) summarize(t *testing.T, repeats int) {
	t.Helper()
	kinds := map[faultKind]int{}
	for _, kind := range s.done {
		kinds[kind]++
	}
	r := s.traffic.ledger.Report()
	p := load.Percentiles(r.FromCommit, 50, 90, 99, 100)
	t.Logf("%d events, %d lost, %d out of order, %d repeats of at most %d; latency p50 %s, p90 %s, p99 %s, max %s",
		r.Committed, r.Lost, r.OutOfOrder, repeats, s.repeats, p[0], p[1], p[2], p[3])
	t.Logf("faults, each of which may repeat the %d rows that a relay has in flight, those of a server all that %d relays have:%s",
		soakInFlight, soakRelays+1, counted(kinds))
	t.Logf("%d processes, at most %.1f log lines for each fault that concerned one; all lines:%s",
		s.processes, s.mostLines, counted(s.messages))
}

func counted[K ~string](counts map[K]int) (text string) {
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		text += fmt.Sprintf("\n%8d %s", counts[k], k)
	}
	return text
}

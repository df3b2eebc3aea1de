package main

import (
	"testing"
	"time"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

const (
	idleRelays = 8
	// A relay at rest must not be felt by the database.
	sentinelStatements, helperStatements = 6.0, 3.0 // a second
	// Of a core: 0.3 % with nothing going on and 0.9 % beside an open writer on a
	// quiet machine. What else runs there shows in CPU time.
	idleCPU = 0.02
	// Long enough for CPU time, which is counted in steps of 10 ms.
	idleMeasured = 20 * time.Second
)

// Relays that have nothing to do cost the database a few statements a second
// and the machine next to nothing.
func TestIdleRelaysCostNextToNothing(t *testing.T) {
	buildRelay(t)
	t.Parallel()
	env := newEnvironment(t)
	// A writer that found the bell free and stays open keeps it from being
	// taken, and the sentinel from its sleep.
	writer, err := testenv.Pool(t, env["DATABASE_URL"]).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	testenv.Insert(t, writer, testenv.Event{Topic: "a.b.c", Key: "k"})

	idle := startIdle(t, env)
	if idle.sentinel.health(t).BellArmed {
		t.Error("the bell is armed beside a writer that will not notify")
	}
	t.Log("while a writer's transaction stays open:")
	idle.wants(t, func(idleCost) bool { return true })

	if err := writer.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the sentinel sleeps", func() bool { return idle.sentinel.health(t).BellArmed })
	t.Log("with nothing going on:")
	idle.wants(t, func(c idleCost) bool { return c.sentinel <= sentinelStatements && c.helper <= helperStatements })
}

// idleCost is what relays at rest cost: statements a second of the sentinel and
// of the busiest helper, and the cores that the worst of all uses.
type idleCost struct{ sentinel, helper, cpu float64 }

// wants measures until the cost is within the limits. A machine that is busy
// with other tests adds to what a relay at rest does, so it may take three times.
func (f *idleFleet) wants(t *testing.T, within func(idleCost) bool) {
	t.Helper()
	var c idleCost
	for range 3 {
		if c = f.measure(t); c.cpu <= idleCPU && within(c) {
			return
		}
	}
	t.Errorf("%.2f statements/s of the sentinel and %.2f of a helper, %.2f %% of a core; want at most %.0f, %.0f and %.0f",
		c.sentinel, c.helper, 100*c.cpu, sentinelStatements, helperStatements, 100*idleCPU)
}

// idleFleet is relays with nothing to do.
type idleFleet struct {
	relays   map[*process]*statementCounter
	sentinel *process
}

func startIdle(t *testing.T, env variables) *idleFleet {
	t.Helper()
	f := &idleFleet{relays: map[*process]*statementCounter{}}
	for range idleRelays {
		counter, through := countStatements(t, env)
		f.relays[startProcess(t, through)] = counter
	}
	for p := range f.relays {
		p.ready(t)
		p.listening(t)
		if p.health(t).Sentinel {
			f.sentinel = p
		}
	}
	if f.sentinel == nil {
		t.Fatal("none of the relays is the sentinel")
	}
	return f
}

func (f *idleFleet) measure(t *testing.T) idleCost {
	t.Helper()
	before := map[*process]time.Duration{}
	for p, counter := range f.relays {
		before[p] = p.stat(t).Own
		counter.reset()
	}
	began := time.Now()
	<-time.After(idleMeasured)
	var all, worst, sentinel, helper float64
	var sentinelLines, helperLines string
	for p, counter := range f.relays {
		seconds := time.Since(began).Seconds()
		sum, lines := perSecond(counter.reset(), seconds)
		all += sum
		switch {
		case p == f.sentinel:
			sentinel, sentinelLines = sum, lines
		case sum >= helper:
			helper, helperLines = sum, lines
		}
		worst = max(worst, (p.stat(t).Own-before[p]).Seconds()/seconds)
	}
	t.Logf("%d relays: %.1f statements/s in all, at most %.2f %% of a core each", len(f.relays), all, 100*worst)
	t.Logf("%.2f statements/s of the sentinel:%s", sentinel, sentinelLines)
	t.Logf("%.2f statements/s of the busiest helper:%s", helper, helperLines)
	return idleCost{sentinel, helper, worst}
}

package main

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

const (
	freezePublishTimeout = 2 * time.Second
	// freezeTimeLimit is when Postgres ends the transaction of a frozen relay.
	freezeTimeLimit = freezePublishTimeout + time.Second
)

// A sentinel that is frozen keeps the keys of the rows that it holds until the
// server ends its transaction, and delays no other. SENTINEL_ROUNDS sets how
// often one is frozen.
func TestFrozenSentinelDelaysOnlyTheKeysThatItHolds(t *testing.T) {
	buildRelay(t)
	t.Parallel()
	env := newEnvironment(t).with("RELAY_PUBLISH_TIMEOUT", freezePublishTimeout.String())
	relays := newFleet(t, env, 3)
	traffic, arrivals := startSteadyTraffic(t, env)

	var others, held []time.Duration
	wanted := rounds(t, "SENTINEL_ROUNDS", 3)
	// One that holds nothing shows nothing of held keys.
	for n := 0; n < wanted || len(held) == 0 && n < wanted+20; n++ {
		name := relays.sentinel(t)
		began := time.Now()
		thaw := relays.freeze(t, name)
		keys := relays.heldKeys(t, name)
		if len(keys) > 0 {
			ended := relays.awaitTransactionEnd(t, name)
			if late := ended.Sub(began) - freezeTimeLimit; late > heldLimit() {
				t.Errorf("the transaction ended %s after its time limit", late)
			}
			held = append(held, awaitKeys(t, arrivals, keys, ended))
		}
		successor := relays.sentinel(t)
		traffic.flow(t, steadyRate)
		thaw()
		relays.relays[name].ready(t)
		traffic.flow(t, steadyRate)
		others = append(others, worstLatency(without(arrivals.since(began), keys)))
		t.Logf("%s frozen with rows of %d keys, then %s is the sentinel", name, len(keys), successor)
	}
	traffic.drain(t)
	relays.stop(t)
	traffic.verdict(t)
	t.Logf("keys of which the frozen relay held no row: worst latency in each round: %s", others)
	t.Logf("keys of which it held rows: the last went on this long after its transaction's end: %s", held)
	if slices.Max(others) > sentinelLimit() {
		t.Errorf("an event took %s, want at most %s", slices.Max(others), sentinelLimit())
	}
	if len(held) == 0 {
		t.Error("no relay held rows when it was frozen: this test shows nothing")
	} else if limit := heldLimit(); slices.Max(held) > limit {
		t.Errorf("a key went on %s after the transaction that held it had ended, want at most %s", slices.Max(held), limit)
	}
}

// awaitKeys waits until an event of each key has arrived after a moment, and
// returns how long after it that was the case.
func awaitKeys(t *testing.T, a *arrivals, keys []string, from time.Time) (took time.Duration) {
	t.Helper()
	testenv.Eventually(t, "the held keys go on", func() bool {
		waited := map[string]bool{}
		for _, key := range keys {
			waited[key] = true
		}
		for _, event := range a.since(from) {
			if waited[event.key] {
				took = event.received.Sub(from)
				delete(waited, event.key)
			}
		}
		return len(waited) == 0
	})
	return took
}

func without(events []arrival, keys []string) (others []arrival) {
	for _, event := range events {
		if !slices.Contains(keys, event.key) {
			others = append(others, event)
		}
	}
	return others
}

// freeze stops a relay's process, and returns once it does nothing any more.
// The relay is no longer asked whether it is the sentinel, until thaw.
func (f *fleet) freeze(t *testing.T, name string) (thaw func()) {
	t.Helper()
	p := f.relays[name]
	p.signal(t, syscall.SIGSTOP)
	testenv.Eventually(t, "the process is stopped", func() bool { return p.stat(t).State == "T" })
	delete(f.relays, name)
	return func() {
		p.signal(t, syscall.SIGCONT)
		f.relays[name] = p
	}
}

// heldKeys returns the keys of the rows that a frozen relay has locked, once
// that has not changed for a while: the server may not yet have begun with what
// the relay sent last. A row's xmax names the transaction that locked it; to try
// its lock would be in the way of the other relays.
func (f *fleet) heldKeys(t *testing.T, name string) (keys []string) {
	t.Helper()
	const settled = 300 * time.Millisecond
	since := time.Now()
	testenv.Eventually(t, "the rows that the frozen relay holds stay the same", func() bool {
		rows, err := f.pool.Query(t.Context(), `SELECT DISTINCT partition_key FROM outbox_event
			WHERE published_at IS NULL AND xmax IN (SELECT backend_xid FROM pg_stat_activity
				WHERE datname = current_database() AND application_name = $1 AND backend_xid IS NOT NULL)
			ORDER BY 1`, name)
		if err != nil {
			t.Fatal(err)
		}
		held, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(held, keys) {
			keys, since = held, time.Now()
		}
		return time.Since(since) > settled
	})
	return keys
}

// awaitTransactionEnd returns when the server ended the transaction of a frozen
// relay.
func (f *fleet) awaitTransactionEnd(t *testing.T, name string) time.Time {
	t.Helper()
	testenv.Eventually(t, "the server ends the transaction", func() bool {
		return countRows(t, f.pool, fmt.Sprintf(`FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = '%s' AND state = 'idle in transaction'`, name)) == 0
	})
	return time.Now()
}

package main

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// faultKind is a thing that goes wrong during a soak.
type faultKind string

const (
	relayKilled     faultKind = "relay killed"
	relayStopped    faultKind = "relay stopped"
	relayReplaced   faultKind = "relay replaced"
	relayFrozen     faultKind = "relay frozen"
	relayFrozenLong faultKind = "relay frozen beyond its transaction's limit"

	listenerEnded faultKind = "a relay's listening session ended"
	claimsEnded   faultKind = "a relay's other sessions ended"
	sessionsEnded faultKind = "all relays' sessions ended"

	kafkaRestarted    faultKind = "Kafka restarted"
	kafkaKilled       faultKind = "Kafka killed"
	postgresRestarted faultKind = "Postgres restarted"
	postgresCrashed   faultKind = "Postgres crashed"
)

// fault is something that goes wrong at a time after the start, and what ends
// it after another time.
type fault struct {
	kind      faultKind
	relay     int // which one, of those that the kind may hit
	at, lasts time.Duration
}

// track is faults that follow each other: a soak has two at the same time. The
// kinds are dealt like cards, so that each comes up even in a short soak.
type track struct {
	kinds   []faultKind
	longest time.Duration               // that a fault lasts, above
	least   map[faultKind]time.Duration // which is 0 for most
	pause   time.Duration               // at most, to the next
}

// Not more than one relay is out at a time.
var relayFaults = track{
	kinds: []faultKind{
		relayKilled, relayStopped, relayReplaced, relayFrozen, relayFrozenLong,
		relayKilled, relayKilled, relayFrozen,
	},
	longest: 3 * time.Second, pause: 3 * time.Second,
	least: map[faultKind]time.Duration{relayFrozenLong: soakTimeLimit},
}

var serverFaults = track{
	kinds: []faultKind{
		listenerEnded, claimsEnded, sessionsEnded, kafkaRestarted, postgresRestarted,
		listenerEnded, claimsEnded, sessionsEnded, kafkaKilled, postgresCrashed,
	},
	longest: 2 * time.Second, pause: 5 * time.Second,
}

// plan returns the faults that begin within the duration, the same for the same
// seed.
func (k *track) plan(random *rand.Rand, duration time.Duration) []fault {
	var faults []fault
	for at := time.Second; ; {
		for _, card := range random.Perm(len(k.kinds)) {
			if at >= duration {
				return faults
			}
			kind := k.kinds[card]
			f := fault{
				kind: kind, relay: random.IntN(soakRelays), at: at,
				lasts: k.least[kind] + time.Duration(random.Int64N(int64(k.longest))),
			}
			faults = append(faults, f)
			at += f.lasts + 200*time.Millisecond + time.Duration(random.Int64N(int64(k.pause)))
		}
	}
}

// soakPlan returns all faults of a soak in the order in which they begin.
func soakPlan(seed uint64, duration time.Duration) []fault {
	faults := slices.Concat(
		relayFaults.plan(rand.New(rand.NewPCG(seed, 1)), duration),
		serverFaults.plan(rand.New(rand.NewPCG(seed, 2)), duration),
	)
	slices.SortStableFunc(faults, func(a, b fault) int { return cmp.Compare(a.at, b.at) })
	return faults
}

func TestSoakPlanIsRepeatedByItsSeedAndHasEachKindWithinAMinute(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		plan := soakPlan(seed, time.Minute)
		if !slices.Equal(plan, soakPlan(seed, time.Minute)) {
			t.Errorf("seed %d gives two plans", seed)
		}
		if slices.Equal(plan, soakPlan(seed+1, time.Minute)) {
			t.Errorf("seeds %d and %d give the same plan", seed, seed+1)
		}
		for _, kind := range slices.Concat(relayFaults.kinds, serverFaults.kinds) {
			if !slices.ContainsFunc(plan, func(f fault) bool { return f.kind == kind }) {
				t.Errorf("seed %d: no %q", seed, kind)
			}
		}
	}
}

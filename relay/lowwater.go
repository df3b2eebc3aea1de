package relay

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// bound is an id at or below which a server's table holds nothing more to
// publish. Claims start their walk above it.
//
// A published row leaves a dead entry at the head of the partial index. While
// any transaction in the cluster is older than that, nothing can remove it, and
// every walk from the start steps over all of them: at 200,000 a claim takes
// longer than to publish what it found.
//
// Rows that every claim leaves out for now are not counted as unpublished: a
// topic that is missing for a day would keep the bound back for as long. The
// bound means nothing once any of them is let in again, which is when the
// exclusions get another version.
type bound struct {
	id       int64
	table    string // which server's, and which storage of it: see identitySQL
	excluded int64  // version of the exclusions
}

// lowWater finds the bound. That all rows up to an id are published in a
// snapshot is not enough: a writer draws the id of a row before its transaction
// becomes visible in any way, even before it has a transaction id, and the row
// may come at any time later. With a bound above it, the next events of its key
// would overtake it. So
//
//  1. an id is chosen that was drawn already,
//  2. all transactions that then had the table open for writing must have
//     ended: whoever drew an id up to the chosen one is among them,
//  3. and a snapshot taken after that must show nothing unpublished up to it.
//
// What is left are rows that come to be without drawing an id first: one made
// unpublished again, one with an id of the writer's choice or from a sequence
// with a cache. A sweep looks for them at or below the bound, and takes it back.
//
// Both take a walk over all that is dead or left out, so neither stands in the
// way of a claim: see lowwater_keep.go.
type lowWater struct {
	mu      sync.Mutex
	found   bound
	settled settled // see cursor
	chosen  bound
	holders []string // virtual transaction ids, when chosen was
	tried   time.Time
	pause   time.Duration

	slow atomic.Int32 // walks from the start in a row that were not quick

	moves  chan struct{}
	sweeps chan struct{}
}

func newLowWater() *lowWater {
	l := &lowWater{moves: make(chan struct{}, 1), sweeps: make(chan struct{}, 1)}
	l.slow.Store(slowWalks) // until one shows otherwise
	return l
}

const (
	// lowWaterStep is how many ids may lie between the bound and the first
	// unpublished row before the bound is moved. A walk over as many dead
	// entries takes a quarter of a millisecond.
	lowWaterStep = 500
	// lowWaterPause spares the database: four relays that drain moved their bounds
	// every 20 ms at 6 % of their throughput. It doubles up to lowWaterLongest while
	// the bound cannot move: a row whose topic waits, or a writer's transaction, may
	// keep it where it is for hours.
	lowWaterPause   = 100 * time.Millisecond
	lowWaterLongest = time.Second
	// quickWalk is how long a walk from the start may take and still stand
	// between a relay at rest and an event.
	quickWalk = 5 * time.Millisecond
	// slowWalks in a row are no mood of the machine, and surelySlow ones are
	// none of a machine that is busy with other things.
	slowWalks, surelySlow = 2, 5
)

// identitySQL tells a table whose ids go on from one whose ids may start lower:
// after a failover, to which a pooler's connection is no witness, the server was
// started at another time; a table that was truncated (RESTART IDENTITY) or made
// anew has other storage. Rows of a table that starts over would otherwise stand
// on both sides of the old bound, and those above it come first.
const identitySQL = `extract(epoch FROM pg_catalog.pg_postmaster_start_time())::text || ' ' ||
       coalesce(pg_catalog.pg_relation_filenode({literal}::regclass), 0)::text`

// highestSQL is an id that was drawn already.
const highestSQL = `SELECT ` + identitySQL + `,
       coalesce((SELECT id FROM {table} ORDER BY id DESC LIMIT 1), 0)`

// holdersSQL lists the transactions that have the table open for writing.
const holdersSQL = `SELECT coalesce(pg_catalog.array_agg(virtualtransaction), '{}')
  FROM pg_catalog.pg_locks
 WHERE locktype = 'relation'
   AND relation = $1::text::regclass
   AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
   AND mode = 'RowExclusiveLock'
   AND granted`

// lowestSQL is the first unpublished row above the bound that a claim may ever
// see while the exclusions hold. A row that waits for its next attempt counts,
// unless its key is excluded: it keeps its place in its key.
const lowestSQL = `SELECT coalesce((SELECT id FROM {table} r
         WHERE published_at IS NULL
           AND ` + aboveSQL + notExcludedSQL + `{left_out}
         ORDER BY id
         LIMIT 1), 0)`

// belowSQL is the first such row that is not above the bound, where there should
// be none.
const belowSQL = `SELECT coalesce((SELECT id FROM {table} r
         WHERE published_at IS NULL
           AND id <= ` + boundSQL + notExcludedSQL + `{left_out}
         ORDER BY id
         LIMIT 1), 0)`

// aboveSQL is a condition on the index: the row is above the bound ($1, $2).
const aboveSQL = `id > ` + boundSQL

const boundSQL = `CASE WHEN ` + identitySQL + ` = $2::text THEN $1::bigint ELSE 0 END`

// tableState is what the server shows, in the order in which it was asked for:
// the proof of lowWater rests on that order.
type tableState struct {
	table    string
	excluded int64
	highest  int64
	holders  []string
	lowest   int64
}

func (s *statements) tableState(ctx context.Context, conn batcher, table string, skip exclusions, above bound) (tableState, error) {
	t := tableState{excluded: skip.version}
	err := s.alone(ctx, conn, func(batch *pgx.Batch) {
		batch.Queue(s.highest).QueryRow(func(r pgx.Row) error { return r.Scan(&t.table, &t.highest) })
		batch.Queue(s.holders, table).QueryRow(func(r pgx.Row) error { return r.Scan(&t.holders) })
		batch.Queue(s.lowest, lookArgs(skip, above)...).QueryRow(func(r pgx.Row) error { return r.Scan(&t.lowest) })
	})
	if err != nil {
		return t, fmt.Errorf("move the low-water bound: %w", err)
	}
	return t, nil
}

// bound is none if the exclusions have another version than those it was found
// under.
func (l *lowWater) bound(excluded int64) bound {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.valid(excluded)
}

func (l *lowWater) valid(excluded int64) bound {
	if l.found.excluded != excluded {
		return bound{}
	}
	return l.found
}

// settledTo is the id of the last proof. A snapshot taken after this call shows
// every row up to it that will ever be.
func (l *lowWater) settledTo() settled {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.settled
}

// dropCursors has claims start at the bound again.
func (l *lowWater) dropCursors() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settled.takenBack++
}

// advance has the bound moved, unless that was tried in vain a moment ago.
func (l *lowWater) advance(now time.Time) {
	if l.due(now) {
		request(l.moves)
	}
}

func (l *lowWater) due(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return now.Sub(l.tried) >= max(l.pause, lowWaterPause)
}

// walked notes how long a walk from the start took.
func (l *lowWater) walked(took time.Duration) {
	switch {
	case took < quickWalk:
		l.slow.Store(0)
	case took > 10*quickWalk:
		l.slow.Store(max(slowWalks, l.slow.Load()+1))
	default:
		l.slow.Add(1)
	}
}

// idled learns from a look that found nothing. Where looks stay slow the bound is
// moved, since no claim comes upon a row that is far from it.
func (l *lowWater) idled(took time.Duration) {
	if took > 10*quickWalk && l.slow.Load() >= surelySlow {
		l.advance(time.Now())
	}
}

// quick tells whether walks from the start are.
func (l *lowWater) quick() bool { return l.slow.Load() < slowWalks }

// sweep has the rows at or below the bound looked for.
func (l *lowWater) sweep() { request(l.sweeps) }

func request(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// learn moves the bound by one more state of the table.
func (l *lowWater) learn(now time.Time, t tableState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tried = now
	before := l.found
	known := l.chosen.table != "" && l.chosen.table == t.table
	inDoubt := known && l.inDoubt(t.holders)
	if known && !inDoubt {
		l.settled.id, l.settled.table = l.chosen.id, l.chosen.table
		l.found = l.chosen
		l.found.excluded = t.excluded
		if t.lowest > 0 {
			l.found.id = min(l.found.id, t.lowest-1)
		}
	}
	if l.pause = min(lowWaterLongest, max(lowWaterPause, 2*l.pause)); l.found != before {
		l.pause = lowWaterPause
	}
	if inDoubt {
		return
	}
	l.chosen, l.holders = bound{id: t.highest, table: t.table}, t.holders
}

// inDoubt tells whether any transaction that had the table open when the id was
// chosen may still be under way. One that was prepared since goes on under
// another name, which begins with -1.
func (l *lowWater) inDoubt(holders []string) bool {
	return slices.ContainsFunc(holders, func(h string) bool {
		return slices.Contains(l.holders, h) || strings.HasPrefix(h, "-1/")
	})
}

// takeBack moves the bound to below a row that was found under it, and reports
// whether there was need to.
func (l *lowWater) takeBack(row int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if row == 0 || row > l.found.id {
		return false
	}
	l.found.id = row - 1
	l.chosen = bound{}
	l.settled = settled{takenBack: l.settled.takenBack + 1}
	return true
}

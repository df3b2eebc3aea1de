package relay

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
	"github.com/outbox-relay/outbox-relay/migrations"
	"github.com/outbox-relay/outbox-relay/notify"
)

// statements are the relay's queries on one table.
type statements struct {
	begin    string
	settings string
	claim    string
	mark     string
	late     string
	look     string
	fetch    string
	record   string
	forget   string
	waiting  string
	parked   string
	highest  string
	holders  string
	lowest   string
	below    string
	sample   string
}

// beginSQL names what a role's defaults may have otherwise. Above READ COMMITTED
// a row that changed since the snapshot is an error (40001) where here it is
// skipped.
const beginSQL = `BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE`

// settingsSQL applies to one transaction, so that nothing is left behind on a
// pooler's connection, and overrides what the role may have set.
//
// The planner settings keep the walk on the partial index, in its order,
// whatever the statistics say: those of a table that is new, or was analysed
// while it was empty, make a sequential scan look cheap, or a bitmap of all
// unpublished rows and a sort. A generic plan takes 0.02 ms to plan instead of
// 0.9.
//
// idle_in_transaction_session_timeout ends a relay that was frozen while it
// held rows; it is longer than the relay itself ever keeps a transaction open.
const settingsSQL = `SELECT pg_catalog.set_config('enable_seqscan', 'off', true),
       pg_catalog.set_config('enable_bitmapscan', 'off', true),
       pg_catalog.set_config('jit', 'off', true),
       pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', true),
       pg_catalog.set_config('statement_timeout', '%[1]d', true),
       pg_catalog.set_config('lock_timeout', '%[1]d', true),
       pg_catalog.set_config('idle_in_transaction_session_timeout', '%[2]d', true),
       pg_catalog.set_config('synchronous_commit', '%[3]s', true)`

// claimColumns are those of a claimed row. created_at is left out where it has
// no RFC 3339 form (infinity, the year 10000), so that one strange row does not
// fail the statement for all; the payload is read as text, which is jsonb's own
// form and keeps numbers of any size, and only of rows that were locked. One
// that is stored in more than $9 bytes stays behind: complete fetches it if it
// still fits into the batch.
const claimColumns = `c.id, c.event_id::text, c.event_type, c.topic, c.partition_key,
       CASE WHEN c.created_at BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-30 00:00:00+00' THEN c.created_at END,
       pg_catalog.pg_column_size(c.payload),
       CASE WHEN l.id IS NOT NULL AND pg_catalog.pg_column_size(c.payload) <= $9::int THEN c.payload::text END,
       l.id IS NOT NULL, f.attempts`

// claimSQL walks the partial index in id order and tries to lock each row
// beside the walk. The walk itself takes no lock, so it shows the rows that
// somebody else holds as well: they are what ends a key. So do rows that wait
// for their next attempt, which are not even tried.
//
// $1 and $2 low-water bound, $3 window, $4 and $5 slice $5 of $4 (the mask,
// because abs() overflows), $6 keys, $7 topics and $8 rows to leave out. The
// lists are unnested: NOT IN over a subquery is hashed, <> ALL over an array is
// not.
const claimSQL = `SELECT ` + claimColumns + `
  FROM (` + walkSQL + `) c
  LEFT JOIN ` + failureOfRowSQL + ` f ON true
  LEFT JOIN LATERAL (SELECT o.id
          FROM {table} o
         WHERE o.id = c.id
           AND o.published_at IS NULL
           AND f.waits IS NOT TRUE
           FOR UPDATE SKIP LOCKED) l ON true`

// walkSQL is the walk of both claims, with the order rule and without. What it
// leaves out beyond the parameters is up to that and to the policy.
const walkSQL = `SELECT id, event_id, event_type, topic, partition_key, created_at, payload
          FROM {table} r
         WHERE published_at IS NULL
           AND ` + aboveSQL + `
           AND ($4::int = 1 OR (pg_catalog.hashtext(partition_key) & 2147483647) % $4::int = $5::int)
           AND partition_key NOT IN (SELECT pg_catalog.unnest($6::text[]))
           AND topic NOT IN (SELECT pg_catalog.unnest($7::text[]))
           AND id NOT IN (SELECT pg_catalog.unnest($8::bigint[])){left_out}
         ORDER BY id
         LIMIT $3::int`

// failureOfRowSQL is the failure record of a row of the walk. The LIMIT keeps it
// a probe for each row: joined, the records would be read as a whole.
const failureOfRowSQL = `LATERAL (SELECT x.attempts,
               x.state = 'parked' OR x.next_attempt_at > pg_catalog.clock_timestamp() AS waits
          FROM {failures} x
         WHERE x.row_id = c.id AND x.event_id = c.event_id
         LIMIT 1)`

// What a statement leaves out by its failure record. As scalar subqueries they
// are probed for each row too. The event's id is compared because a table that
// the service has emptied may begin to count anew.
const (
	notParkedSQL = `
           AND (SELECT x.state FROM {failures} x WHERE x.row_id = r.id AND x.event_id = r.event_id LIMIT 1)
               IS DISTINCT FROM 'parked'`
	notWaitingSQL = `
           AND (SELECT x.state = 'parked' OR x.next_attempt_at > pg_catalog.clock_timestamp()
                  FROM {failures} x WHERE x.row_id = r.id AND x.event_id = r.event_id LIMIT 1)
               IS NOT TRUE`
)

// claimAnySQL is the claim without the order rule. Rows that others hold mean
// nothing to it, so it steps over them before they count.
const claimAnySQL = `SELECT ` + claimColumns + `
  FROM (` + walkSQL + `
           FOR UPDATE OF r SKIP LOCKED) c
  LEFT JOIN ` + failureOfRowSQL + ` f ON true
 CROSS JOIN LATERAL (SELECT c.id) l`

// notExcludedSQL leaves out what the claims do, by the arguments of lookArgs.
const notExcludedSQL = `
           AND partition_key NOT IN (SELECT pg_catalog.unnest($3::text[]))
           AND topic NOT IN (SELECT pg_catalog.unnest($4::text[]))`

// lookSQL asks for the first unpublished row that is not left alone by decision.
// Rows locked by others count.
//
// A scalar subquery keeps its ORDER BY, and with it the walk on the partial
// index, also where the settings are not in force; an EXISTS loses it.
const lookSQL = `SELECT (SELECT id FROM {table} r
         WHERE published_at IS NULL
           AND ` + aboveSQL + notExcludedSQL + notWaitingSQL + `
         ORDER BY id
         LIMIT 1) IS NOT NULL`

func newStatements(table pgtable.Name, cfg *Config) statements {
	claim, leaveOut := claimSQL, notParkedSQL
	switch {
	case cfg.Order == OrderNone:
		// There is no key to end: a row that waits is nothing but in the way.
		claim, leaveOut = claimAnySQL, notWaitingSQL
	case cfg.OnPoison == Block:
		// A parked row is met and ends its key.
		leaveOut = ""
	}
	syncCommit := "on"
	if cfg.AsyncMark {
		syncCommit = "off"
	}
	failures := table.Sibling(migrations.FailureTable)
	leaveOut = strings.ReplaceAll(leaveOut, "{failures}", failures)
	literal := "'" + strings.ReplaceAll(table.Sanitize(), "'", "''") + "'"
	on := strings.NewReplacer("{table}", table.Sanitize(), "{literal}", literal,
		"{failures}", failures, "{left_out}", leaveOut).Replace
	timeout := cfg.PublishTimeout.Milliseconds()
	return statements{
		begin:    beginSQL,
		settings: fmt.Sprintf(settingsSQL, timeout, timeout+idleMargin.Milliseconds(), syncCommit),
		claim:    on(claim),
		mark:     on(markSQL),
		late:     on(markLateSQL),
		look:     on(lookSQL),
		fetch:    on(fetchSQL),
		record:   on(recordSQL),
		forget:   on(forgetSQL),
		waiting:  on(waitingSQL),
		parked:   on(parkedSQL),
		highest:  on(highestSQL),
		holders:  holdersSQL,
		lowest:   on(lowestSQL),
		below:    on(belowSQL),
		sample:   on(sampleSQL),
	}
}

// idleMargin is how much longer the server waits than the relay does.
const idleMargin = time.Second

// window says which rows a claim looks at.
type window struct {
	limit  int // rows walked
	batch  int // rows published, at most
	slices int // 1: all rows
	slice  int
	skip   exclusions
	above  bound
	bytes  int // payload bytes published, at most, but for the first row

	settled settled // as of before the claim
	marking []int64 // rows that are being marked
	partial bool    // keys are left out that others hold
	glimpse bool    // only the first rows, for those that nobody takes
}

// inline is the largest stored size of a payload that comes with its row. The
// rows of a window that is wider than the batch come without: most of them are
// left for later.
func (w *window) inline() int {
	const largest = 8 << 10
	if w.limit > w.batch {
		return -1
	}
	return largest
}

// exclusions are rows that a claim leaves alone. They have a version, which
// changes whenever one of them is no longer left alone.
type exclusions struct {
	keys    []string
	topics  []string
	version int64
}

// claim holds locked rows in an open transaction on the connection that made
// it.
type claim struct {
	events []event  // to publish, in id order
	held   []string // keys whose next row somebody else holds
	walked int      // rows seen, locked or not
	bytes  int      // payload bytes of events
	first  int64    // lowest and highest id seen, 0 without any
	last   int64
	heavy  bool // rows were left because of the batch's bytes
}

// take opens a transaction and claims rows, in one round trip unless payloads
// are large. On an error the connection may be in a failed transaction: give it
// back, the pool closes such connections.
func (s *statements) take(ctx context.Context, conn batcher, w window, order Order) (claim, error) {
	batch := &pgx.Batch{}
	batch.Queue(s.begin)
	batch.Queue(s.settings)
	rows := make([]lockedRow, 0, min(w.limit, 1000))
	batch.Queue(s.claim, w.above.id, w.above.table, w.limit, w.slices, w.slice,
		nonNil(w.skip.keys), nonNil(w.skip.topics), nonNil(w.marking), w.inline()).Query(func(r pgx.Rows) error {
		var err error
		rows, err = scanRows(r, rows, w.bytes)
		return err
	})
	if err := conn.SendBatch(ctx, batch).Close(); err != nil {
		return claim{}, fmt.Errorf("claim rows: %w", err)
	}
	c := cut(rows, order, w.batch)
	return c, s.complete(ctx, conn, &c, w.bytes)
}

// batcher is a connection: *pgxpool.Conn or *pgx.Conn.
type batcher interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

type lockedRow struct {
	event
	mine bool
}

// scanRows keeps payloads until they have filled the batch's bytes. What is
// stored in little may unpack to much.
func scanRows(r pgx.Rows, rows []lockedRow, bytes int) ([]lockedRow, error) {
	var (
		created pgtype.Timestamptz
		payload pgtype.DriverBytes // valid until the next row

		attempts *int // none without a failure record
	)
	for r.Next() {
		var row lockedRow
		if err := r.Scan(&row.id, &row.eventID, &row.eventType, &row.topic, &row.key,
			&created, &row.stored, &payload, &row.mine, &attempts); err != nil {
			return nil, err
		}
		if payload != nil && bytes > 0 {
			row.payload = slices.Clone(payload)
			bytes -= len(payload)
		}
		if row.recorded = attempts != nil; row.recorded {
			row.attempts = *attempts
		}
		if created.Valid {
			row.createdAt = created.Time
		}
		rows = append(rows, row)
	}
	return rows, r.Err()
}

// full tells whether the claim was cut short by its window: more rows are
// likely.
func (c *claim) full(w window) bool {
	return c.walked >= w.limit || len(c.events) >= w.batch || c.heavy
}

// huge tells whether a few rows used up the batch's bytes. One worker is enough
// for such rows, and each more would need as much memory.
func (c *claim) huge(w window) bool {
	const few = 8
	return len(c.events) > 0 && c.bytes/len(c.events) > w.bytes/few
}

// cut applies the order rule: of each key, the rows up to the first that
// somebody else holds; and of those the first few that make a batch. The rows
// behind stay locked until the transaction ends, and are left for a later
// round.
func cut(rows []lockedRow, order Order, batch int) claim {
	// The join promises no order.
	slices.SortFunc(rows, func(a, b lockedRow) int { return int(min(max(a.id-b.id, -1), 1)) })
	c := claim{walked: len(rows), events: make([]event, 0, min(batch, len(rows)))}
	if len(rows) > 0 {
		c.first, c.last = rows[0].id, rows[len(rows)-1].id
	}
	held := map[string]bool{}
	for i := range rows {
		row := &rows[i]
		switch {
		case order == OrderKey && held[row.key]:
		case row.mine && len(c.events) == batch:
		case row.mine:
			c.events = append(c.events, row.event)
		case order == OrderKey:
			held[row.key] = true
			c.held = append(c.held, row.key)
		}
	}
	return c
}

// anyLeft asks whether any unpublished row above the bound remains, whoever
// holds it.
func (s *statements) anyLeft(ctx context.Context, conn batcher, skip exclusions, above bound) (bool, error) {
	var left bool
	err := s.alone(ctx, conn, func(batch *pgx.Batch) {
		batch.Queue(s.look, lookArgs(skip, above)...).QueryRow(func(r pgx.Row) error { return r.Scan(&left) })
	})
	if err != nil {
		return false, fmt.Errorf("look for unpublished rows: %w", err)
	}
	return left, nil
}

// glance is anyLeft for a relay at rest: one statement, under the role's own
// settings. It also selects what else is asked for.
func (s *statements) glance(ctx context.Context, q notify.Querier, skip exclusions, above bound, also string, dest ...any) (left bool, err error) {
	row := q.QueryRow(ctx, s.look+also, lookArgs(skip, above)...)
	if err := row.Scan(append([]any{&left}, dest...)...); err != nil {
		return false, fmt.Errorf("look for unpublished rows: %w", err)
	}
	return left, nil
}

func lookArgs(skip exclusions, above bound) []any {
	return []any{above.id, above.table, nonNil(skip.keys), nonNil(skip.topics)}
}

// alone runs what queue adds in a transaction of its own, under the relay's
// settings, in one round trip.
func (s *statements) alone(ctx context.Context, conn batcher, queue func(*pgx.Batch)) error {
	batch := &pgx.Batch{}
	batch.Queue(s.begin)
	batch.Queue(s.settings)
	queue(batch)
	batch.Queue("COMMIT")
	return conn.SendBatch(ctx, batch).Close()
}

// nonNil keeps an empty list from becoming NULL: NOT IN (NULL) is never true,
// and the relay would publish nothing at all.
func nonNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

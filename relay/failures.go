package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/parked"
)

// States of a failure record that the relay writes. An operator adds
// discarded.
const (
	stateWaiting      = parked.Waiting
	stateParked       = parked.Parked
	stateDeadLettered = parked.DeadLettered
)

// refusal is what is recorded of a row that could not be published.
type refusal struct {
	event    event
	code     string
	message  string
	attempts int
	state    string
	reason   string
	pause    time.Duration // until the next attempt
}

// recordSQL writes down refusals in the claim's transaction, whose row locks
// keep other relays from doing the same. A record of another event under the
// same id, from before the table was emptied, is overwritten.
const recordSQL = `INSERT INTO {failures} AS f (row_id, event_id, topic, partition_key, kind, code, error,
       attempts, first_failed_at, last_failed_at, next_attempt_at, state, reason)
SELECT n.row_id, n.event_id::uuid, n.topic, n.partition_key, 'row', n.code, n.error,
       n.attempts, now.at, now.at, now.at + n.pause * interval '1 second', n.state, nullif(n.reason, '')
  FROM ROWS FROM (pg_catalog.unnest($1::bigint[]), pg_catalog.unnest($2::text[]), pg_catalog.unnest($3::text[]),
       pg_catalog.unnest($4::text[]), pg_catalog.unnest($5::text[]), pg_catalog.unnest($6::text[]),
       pg_catalog.unnest($7::int[]), pg_catalog.unnest($8::float8[]), pg_catalog.unnest($9::text[]),
       pg_catalog.unnest($10::text[]))
       AS n (row_id, event_id, topic, partition_key, code, error, attempts, pause, state, reason)
 CROSS JOIN (SELECT pg_catalog.clock_timestamp() AS at) now
    ON CONFLICT (row_id) DO UPDATE
   SET event_id = EXCLUDED.event_id, topic = EXCLUDED.topic, partition_key = EXCLUDED.partition_key,
       kind = EXCLUDED.kind, code = EXCLUDED.code, error = EXCLUDED.error, attempts = EXCLUDED.attempts,
       first_failed_at = CASE WHEN f.event_id = EXCLUDED.event_id THEN f.first_failed_at ELSE EXCLUDED.first_failed_at END,
       last_failed_at = EXCLUDED.last_failed_at, next_attempt_at = EXCLUDED.next_attempt_at,
       state = EXCLUDED.state, reason = EXCLUDED.reason`

// forgetSQL drops the records of rows that were published after all.
const forgetSQL = `DELETE FROM {failures} WHERE row_id = ANY ($1::bigint[]) AND state = 'waiting'`

// waitingSQL lists the keys whose next row waits, and for how long. With $1 a
// parked row keeps its key waiting as well. There are seldom more than a few;
// rows of keys beyond the limit are met by the claims, one by one.
const waitingSQL = `SELECT partition_key,
       CASE WHEN state = 'waiting' THEN extract(epoch FROM next_attempt_at - pg_catalog.clock_timestamp())::float8 END
  FROM {failures}
 WHERE state IN ('waiting', 'parked') AND (state = 'waiting' OR $1)
 ORDER BY row_id
 LIMIT 10000`

// parkedSQL counts parked rows as far as it is cheap.
const parkedSQL = `SELECT count(*) FROM (SELECT FROM {failures}
         WHERE state IN ('waiting', 'parked') AND state = 'parked' LIMIT 100000) p`

// queueRefusals adds to a transaction what became of rows that failed.
func (s *statements) queueRefusals(batch *pgx.Batch, refusals []refusal) {
	if len(refusals) == 0 {
		return
	}
	n := len(refusals)
	var (
		rowIDs                                            = make([]int64, n)
		eventIDs, topics, keys, codes, errs, states, whys = make([]string, n), make([]string, n), make([]string, n),
			make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		attempts = make([]int32, n)
		pauses   = make([]float64, n)
	)
	for i, r := range refusals {
		rowIDs[i], eventIDs[i], topics[i], keys[i] = r.event.id, r.event.eventID, r.event.topic, r.event.key
		codes[i], errs[i], attempts[i], pauses[i] = r.code, r.message, int32(min(r.attempts, 1<<30)), r.pause.Seconds()
		states[i], whys[i] = r.state, r.reason
	}
	batch.Queue(s.record, rowIDs, eventIDs, topics, keys, codes, errs, attempts, pauses, states, whys)
}

// waitingKey is a key whose next row is tried again later, or never by itself.
type waitingKey struct {
	key   string
	until time.Time // zero: until an operator decides
}

func (s *statements) waitingKeys(ctx context.Context, q rowsQuerier, parkedToo bool) ([]waitingKey, error) {
	rows, err := q.Query(ctx, s.waiting, parkedToo)
	if err != nil {
		return nil, fmt.Errorf("read the failure table: %w", err)
	}
	now := time.Now()
	keys, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (waitingKey, error) {
		var (
			k       waitingKey
			seconds *float64
		)
		err := row.Scan(&k.key, &seconds)
		if seconds != nil {
			k.until = now.Add(time.Duration(*seconds * float64(time.Second)))
		}
		return k, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the failure table: %w", err)
	}
	return keys, nil
}

type rowsQuerier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

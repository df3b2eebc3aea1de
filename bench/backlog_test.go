package bench

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/load"
)

// backlog is a number of rows that are written in one statement. Their keys
// take turns.
type backlog struct {
	rows, keys int
	keyPrefix  string
	topic      string
	published  bool // marked as such by a relay of long ago
}

// fill writes the rows in one transaction, enters them into the ledger, unless
// it is nil, and returns the time just before the commit. The event ids ascend as those of
// real writers do: random ones would spread the marks' index entries over the
// whole index and measure that.
func (o *outbox) fill(b *testing.B, ledger *load.Ledger, what backlog) (committing time.Time) {
	b.Helper()
	statement := "INSERT INTO " + o.table.Sanitize() + `
		(event_id, aggregate_type, aggregate_id, event_type, payload, topic, partition_key, published_at)
		SELECT (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint + n), 12, '0')
		        || '7' || substr(replace(gen_random_uuid()::text, '-', ''), 14))::uuid,
		       'load', key, 'load.sent',
		       jsonb_build_object('seq', n, 'fill', repeat('x', $2::int)), $3::text, key,
		       CASE WHEN $6::bool THEN now() END
		FROM (SELECT n, $5::text || n % $4::int AS key FROM generate_series(1, $1::int) AS n) AS series
		ORDER BY n`
	if ledger != nil {
		statement += " RETURNING event_id, partition_key, id, topic"
	}
	const fields = len(`{"seq": 100000, "fill": ""}`)
	args := []any{what.rows, max(0, payloadBytes(b)-fields), what.topic, what.keys, what.keyPrefix, what.published}
	err := pgx.BeginFunc(b.Context(), o.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(b.Context(), statement, args...)
		if err != nil {
			return err
		}
		if ledger != nil {
			err = enter(ledger, rows)
		} else {
			rows.Close()
			err = rows.Err()
		}
		committing = time.Now()
		return err
	})
	if err != nil {
		b.Fatalf("write a backlog of %d rows: %v", what.rows, err)
	}
	return committing
}

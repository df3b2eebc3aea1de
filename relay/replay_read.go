package relay

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outbox-relay/outbox-relay/internal/pgerr"
	"github.com/outbox-relay/outbox-relay/internal/pgtable"
	"github.com/outbox-relay/outbox-relay/migrations"
)

// replayWhere chooses the events: $1 topic, $2 and $3 the time, $4 key or NULL,
// $5 the lowest id.
const replayWhere = `o.topic = $1::text
   AND o.published_at >= $2::timestamptz AND o.published_at < $3::timestamptz
   AND ($4::text IS NULL OR o.partition_key = $4::text)
   AND o.id >= $5::bigint
   AND (SELECT f.state FROM %[2]s f WHERE f.row_id = o.id AND f.event_id = o.event_id) IS DISTINCT FROM 'discarded'`

// replayPlanSQL reads the whole table once: nothing but the service's own indexes
// leads to published rows.
const replayPlanSQL = `WITH chosen AS (SELECT count(*) AS events, min(o.id) AS first, max(o.id) AS last FROM %[1]s o WHERE ` + replayWhere + `)
SELECT c.events, o.id, o.event_id::text, o.partition_key, o.published_at
  FROM chosen c
  LEFT JOIN %[1]s o ON o.id IN (c.first, c.last)
 ORDER BY o.id`

// replaySQL reads the next events in id order, $6 the highest id, $7 how many at
// most, $8 up to how many bytes as they are stored; the first is always read.
// Each batch is a statement of its own because one that lasts as long as the
// replay would keep dead rows from being removed.
const replaySQL = `SELECT id, event_id::text, event_type, topic, partition_key,
       CASE WHEN created_at BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-30 00:00:00+00' THEN created_at END,
       payload::text, published_at
  FROM (SELECT w.*, sum(pg_catalog.pg_column_size(w.payload)) OVER (ORDER BY w.id) - pg_catalog.pg_column_size(w.payload) AS before
          FROM (SELECT o.*
                  FROM %[1]s o
                 WHERE ` + replayWhere + `
                   AND o.id <= $6::bigint
                 ORDER BY o.id
                 LIMIT $7::int) w) s
 WHERE before < $8::bigint
 ORDER BY id`

// replaySettingsSQL keeps the walk on the primary key: a plan that sorts would
// read all that is left for each batch. To read on may take long.
const replaySettingsSQL = `SELECT pg_catalog.set_config('enable_seqscan', 'off', true),
       pg_catalog.set_config('enable_bitmapscan', 'off', true),
       pg_catalog.set_config('enable_sort', 'off', true),
       pg_catalog.set_config('statement_timeout', '0', true)`

func (r Replay) open(ctx context.Context, cfg *Config, log *slog.Logger) (*replayer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	table, err := pgtable.Parse(cfg.Table)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, cfg.DatabaseURL)
	if err != nil {
		return nil, pgerr.Connecting(err)
	}
	failures := table.Sibling(migrations.FailureTable)
	w := &replayer{
		Replay: r, cfg: cfg, conn: conn, log: log,
		plan:  fmt.Sprintf(replayPlanSQL, table.Sanitize(), failures),
		batch: fmt.Sprintf(replaySQL, table.Sanitize(), failures),
	}
	if err := w.mayRead(ctx, table); err != nil {
		closeConn(conn)
		return nil, err
	}
	return w, nil
}

// mayRead says what is missing for a replay.
func (w *replayer) mayRead(ctx context.Context, table pgtable.Name) error {
	report, err := migrations.Inspect(ctx, w.conn, table)
	if err != nil {
		return err
	}
	failures := table.Sibling(migrations.FailureTable)
	lacks := func(privilege string) bool {
		return strings.HasPrefix(privilege, "SELECT") || strings.HasPrefix(privilege, "USAGE")
	}
	switch {
	case !report.Exists:
		return fmt.Errorf("table %s does not exist: point DATABASE_URL and RELAY_TABLE at it", table)
	case report.FailureTableFault != "":
		return fmt.Errorf(`failure table %s: %s: "relay migrate" makes what is missing of it`, failures, report.FailureTableFault)
	case slices.ContainsFunc(slices.Concat(report.MissingPrivileges, report.MissingFailurePrivileges), lacks):
		return fmt.Errorf("this role may not read what it takes: GRANT SELECT ON %s, %s TO it, and USAGE on their schema", table.Sanitize(), failures)
	}
	return nil
}

func (w *replayer) args(from int64, more ...any) []any {
	return append([]any{w.Topic, w.From, w.To, w.Key, from}, more...)
}

func (w *replayer) look(ctx context.Context) (plan ReplayPlan, err error) {
	rows, err := w.conn.Query(ctx, w.plan, w.args(w.FromID)...)
	if err != nil {
		return plan, fmt.Errorf("look for the events to replay: %w", err)
	}
	var (
		id          pgtype.Int8
		event, key  pgtype.Text
		publishedAt pgtype.Timestamptz
		fields      = []any{&plan.Events, &id, &event, &key, &publishedAt}
	)
	_, err = pgx.ForEachRow(rows, fields, func() error {
		plan.Last = ReplayRow{id.Int64, event.String, key.String, publishedAt.Time}
		if plan.First.EventID == "" {
			plan.First = plan.Last
		}
		return nil
	})
	if err != nil {
		return plan, fmt.Errorf("look for the events to replay: %w", err)
	}
	return plan, nil
}

// replayedEvent is an event with the time of its first publication.
type replayedEvent struct {
	event
	publishedAt time.Time
}

// next reads the events from id up to that of the last row.
func (w *replayer) next(ctx context.Context, from, last int64) (events []replayedEvent, err error) {
	options := pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, w.conn, options, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, replaySettingsSQL); err != nil {
			return err
		}
		// A payload may unpack to a hundred times what it takes in the table.
		rows, err := tx.Query(ctx, w.batch, w.args(from, last, w.batchSize(), w.cfg.BatchBytes/16)...)
		if err != nil {
			return err
		}
		var (
			e         replayedEvent
			createdAt pgtype.Timestamptz
		)
		fields := []any{&e.id, &e.eventID, &e.eventType, &e.topic, &e.key, &createdAt, &e.payload, &e.publishedAt}
		_, err = pgx.ForEachRow(rows, fields, func() error {
			e.createdAt = createdAt.Time
			events = append(events, e)
			e.payload = nil
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read events to replay from row %d: %w", from, err)
	}
	return events, nil
}

package parked

import (
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// States of a record.
const (
	Waiting      = "waiting"       // is tried again at NextAttemptAt
	Parked       = "parked"        // waits for an operator
	DeadLettered = "dead_lettered" // stands in the dead-letter topic
	Discarded    = "discarded"     // was given up by an operator
)

// States are all of them.
var States = []string{Waiting, Parked, DeadLettered, Discarded}

// Record is a row of the failure table. Its JSON has the table's column names.
type Record struct {
	RowID         int64   `json:"row_id" db:"row_id"`
	EventID       string  `json:"event_id" db:"event_id"`
	Topic         string  `json:"topic" db:"topic"`
	PartitionKey  string  `json:"partition_key" db:"partition_key"`
	Kind          string  `json:"kind" db:"kind"`
	Code          string  `json:"code" db:"code"`
	Error         string  `json:"error" db:"error"`
	Attempts      int     `json:"attempts" db:"attempts"`
	FirstFailedAt Time    `json:"first_failed_at" db:"first_failed_at"`
	LastFailedAt  Time    `json:"last_failed_at" db:"last_failed_at"`
	NextAttemptAt Time    `json:"next_attempt_at" db:"next_attempt_at"`
	State         string  `json:"state" db:"state"`
	Reason        *string `json:"reason" db:"reason"`
	ChangedAt     Time    `json:"changed_at" db:"changed_at"`
	ChangedBy     *string `json:"changed_by" db:"changed_by"`
}

// recordColumns are those of a Record, of the failure table as f.
const recordColumns = `f.row_id, f.event_id::text, f.topic, f.partition_key, f.kind, f.code, f.error, f.attempts,
       f.first_failed_at, f.last_failed_at, f.next_attempt_at, f.state, f.reason, f.changed_at, f.changed_by`

// Row is what the outbox table says about a record's row.
type Row struct {
	AggregateType string `json:"aggregate_type" db:"aggregate_type"`
	AggregateID   string `json:"aggregate_id" db:"aggregate_id"`
	EventType     string `json:"event_type" db:"event_type"`
	CreatedAt     Time   `json:"created_at" db:"created_at"`
	PublishedAt   Time   `json:"published_at" db:"published_at"`
	// PayloadBytes is the length of the record's value in Kafka.
	PayloadBytes int64 `json:"payload_bytes" db:"payload_bytes"`
	// Payload is filled only on demand: it may hold what nobody should see.
	Payload json.RawMessage `json:"payload,omitempty" db:"payload"`
}

// Time is a moment that Postgres may also know as infinite or not at all.
type Time struct{ pgtype.Timestamptz }

// String returns the time in RFC 3339 and UTC to the microsecond, infinity or
// -infinity, or nothing.
func (t Time) String() string {
	switch {
	case !t.Valid:
		return ""
	case t.InfinityModifier != pgtype.Finite:
		return t.InfinityModifier.String()
	default:
		return t.Time.UTC().Format(time.RFC3339Nano)
	}
}

// MarshalJSON returns String as a JSON string, or null where there is no time.
func (t Time) MarshalJSON() ([]byte, error) {
	if !t.Valid {
		return []byte("null"), nil
	}
	return json.Marshal(t.String())
}

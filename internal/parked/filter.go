package parked

import "time"

// Filter chooses records. A nil field chooses all; an empty text chooses those
// with an empty text, which a topic or a key may be.
type Filter struct {
	Topic, Key, Kind *string
	// States defaults to waiting and parked, which are those still open.
	States []string
	// OlderThan chooses records whose first failure is at least so long ago.
	OlderThan time.Duration
	// Limit bounds how many are listed, lowest row id first; 0 lists all.
	Limit int64
}

// Narrows tells whether the filter asks for a topic, a key or a kind.
func (f Filter) Narrows() bool { return f.Topic != nil || f.Key != nil || f.Kind != nil }

// filterSQL takes the arguments that args returns. It compares the age with the
// clock of the database, which also wrote the record.
const filterSQL = `f.state = ANY ($1::text[])
   AND ($2::text IS NULL OR f.topic = $2::text)
   AND ($3::text IS NULL OR f.partition_key = $3::text)
   AND ($4::text IS NULL OR f.kind = $4::text)
   AND f.first_failed_at <= pg_catalog.now() - pg_catalog.make_interval(secs => $5::float8)`

func (f Filter) args(more ...any) []any {
	states := f.States
	if len(states) == 0 {
		states = []string{Waiting, Parked}
	}
	return append([]any{states, f.Topic, f.Key, f.Kind, f.OlderThan.Seconds()}, more...)
}

package main

import (
	"time"

	"github.com/outbox-relay/outbox-relay/relay"
)

// readiness is the body of /readyz. Only the two servers decide about its
// status; the rest is there for whoever looks.
type readiness struct {
	// Status is ready or not_ready.
	Status   string       `json:"status"`
	Database serverStatus `json:"database"`
	Broker   serverStatus `json:"broker"`

	ListenerUp bool `json:"listener_up"`
	Sentinel   bool `json:"sentinel"`
	BellArmed  bool `json:"bell_armed"`

	WaitingTopics []waitingTopic `json:"waiting_topics"`
	WaitingRows   int            `json:"waiting_rows"`

	// Null while they are not known, which is not the same as none.
	OldestUnpublished *float64 `json:"oldest_unpublished_seconds"`
	Unpublished       *int64   `json:"unpublished"`
	ParkedRows        *int     `json:"parked_rows"`
}

type serverStatus struct {
	Up    bool   `json:"up"`
	Error string `json:"error,omitempty"`
}

type waitingTopic struct {
	Topic    string    `json:"topic"`
	Error    string    `json:"error"`
	Attempts int       `json:"attempts"`
	NextTry  time.Time `json:"next_try"`
}

func newReadiness(h relay.Health) readiness {
	r := readiness{
		Status:        "not_ready",
		Database:      serverStatus{h.DatabaseUp, redact(h.DatabaseError)},
		Broker:        serverStatus{h.BrokerUp, redact(h.BrokerError)},
		ListenerUp:    h.ListenerUp,
		Sentinel:      h.Sentinel,
		BellArmed:     h.BellArmed,
		WaitingTopics: make([]waitingTopic, 0, len(h.WaitingTopics)), // [] rather than null
		WaitingRows:   h.WaitingRows,
	}
	if h.Ready() {
		r.Status = "ready"
	}
	for _, t := range h.WaitingTopics {
		r.WaitingTopics = append(r.WaitingTopics, waitingTopic{t.Topic, redact(t.Error), t.Attempts, t.NextTry.UTC()})
	}
	if h.Sampled {
		seconds := h.OldestUnpublished.Seconds()
		r.OldestUnpublished, r.Unpublished, r.ParkedRows = &seconds, &h.Unpublished, &h.ParkedRows
	}
	return r
}

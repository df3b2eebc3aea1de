package relay

import "time"

// Health is a snapshot of what the relay knows of itself. It is cheap: nothing
// is asked of the database or the broker to answer it.
type Health struct {
	// DatabaseUp and BrokerUp are what the last attempt showed. A relay that
	// has not yet reached one of them reports it down.
	DatabaseUp bool
	BrokerUp   bool
	// DatabaseError and BrokerError say why, when down.
	DatabaseError string
	BrokerError   string

	// ListenerUp is false while the LISTEN connection is down or hears
	// nothing; the relay then polls.
	ListenerUp bool
	// Sentinel is true for the one relay of a table that arms the bell.
	Sentinel bool
	// BellArmed is true while this relay sleeps and writers notify.
	BellArmed bool

	// WaitingTopics are topics whose rows wait because Kafka refuses the topic.
	WaitingTopics []WaitingTopic
	// WaitingRows counts rows that Kafka refused and whose keys wait: for their
	// next attempt, or under the policy Block for an operator.
	WaitingRows int

	// OldestUnpublished is the age of the first unpublished row, and
	// Unpublished an estimate of how many there are. Sampled is false when the
	// last look at them failed; both are then meaningless.
	Sampled           bool
	OldestUnpublished time.Duration
	Unpublished       int64
	// ParkedRows are set aside for an operator, counted up to 100,000. It too is
	// meaningless unless Sampled.
	ParkedRows int
}

// Ready reports whether both servers answer. Waiting topics or rows and a deaf
// listener leave the relay ready: everything else is still published.
func (h Health) Ready() bool { return h.DatabaseUp && h.BrokerUp }

// WaitingTopic is a topic that cannot be published to.
type WaitingTopic struct {
	Topic    string
	Error    string
	Attempts int
	NextTry  time.Time
}

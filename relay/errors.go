package relay

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// ErrShutdownIncomplete is returned by Run when ShutdownTimeout passed before
// everything handed to Kafka was acknowledged and marked. Nothing is lost; the
// rows that were left unmarked are published again by the next relay.
var ErrShutdownIncomplete = errors.New("shutdown timeout reached before all records in flight were marked: " +
	"they will be published again")

// ErrAlreadyRun is returned by a second call of Run. Build another Relay.
var ErrAlreadyRun = errors.New("this relay has been run already: build another with New")

// failureKind says what a failed publish says about.
type failureKind string

const (
	// kindOutage is about the cluster: no row is to blame, everything waits.
	kindOutage failureKind = "outage"
	// kindTopic is about one topic: its rows wait, all others flow.
	kindTopic failureKind = "topic"
	// kindRow is about one row.
	kindRow failureKind = "row"
)

var topicErrors = []*kerr.Error{
	kerr.UnknownTopicOrPartition,
	kerr.UnknownTopicID,
	kerr.InvalidTopicException,
	kerr.TopicAuthorizationFailed,
}

var rowErrors = []*kerr.Error{
	kerr.MessageTooLarge,
	kerr.RecordListTooLarge,
	kerr.InvalidRecord,
	kerr.InvalidTimestamp,
	kerr.CorruptMessage,
}

// classify tells the kind of a publish error and a short code for logs and
// metrics. No error, and one that only says that another row failed, has none.
// What is not known to be about a topic or a row counts as an outage,
// since that blames nobody and loses nothing.
func classify(err error) (failureKind, string) {
	if err == nil || errors.Is(err, errBehind) {
		return "", ""
	}
	for _, e := range rowErrors {
		if errors.Is(err, e) {
			return kindRow, e.Message
		}
	}
	for _, e := range topicErrors {
		if errors.Is(err, e) {
			return kindTopic, e.Message
		}
	}
	if e, ok := errors.AsType[*kerr.Error](err); ok {
		return kindOutage, e.Message
	}
	switch {
	case errors.Is(err, kgo.ErrRecordTimeout), errors.Is(err, errPending), errors.Is(err, errNotSent):
		return kindOutage, "TIMEOUT"
	case errors.Is(err, kgo.ErrClientClosed):
		return kindOutage, "CLIENT_CLOSED"
	}
	return kindOutage, "UNREACHABLE"
}

// errInvalidTopicName is what Kafka would answer, found before asking it.
func errInvalidTopicName(topic string) error {
	return fmt.Errorf("topic name %.40q is not 1 to 249 of a-z A-Z 0-9 . _ -: %w", topic, kerr.InvalidTopicException)
}

// tooLargeError is a record that was not handed to Kafka because the topic does
// not take it.
type tooLargeError struct {
	size, limit int
	assumed     bool // the limit is, since Kafka did not answer
}

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("record of %d bytes is above the topic's max.message.bytes of %d", e.size, e.limit)
}

func (e *tooLargeError) Unwrap() error { return kerr.MessageTooLarge }

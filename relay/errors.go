package relay

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
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
	case errors.Is(err, kgo.ErrRecordTimeout), errors.Is(err, errPending):
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
type tooLargeError struct{ size, limit int }

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("record of %d bytes is above the topic's max.message.bytes of %d", e.size, e.limit)
}

func (e *tooLargeError) Unwrap() error { return kerr.MessageTooLarge }

// databaseRefuses tells whether the database answered and will not do it, now
// or later: a constraint, a missing right, a table that is gone.
func databaseRefuses(err error) bool {
	answer, ok := errors.AsType[*pgconn.PgError](err)
	return ok && !transient(answer.Code)
}

// transient tells whether a server that answers so may do it later: it starts
// up or shuts down (57), is short of something (53), lost the connection (08),
// rolled back for somebody else's sake (40) or could not have a lock (55).
func transient(code string) bool {
	return slices.Contains([]string{"57", "53", "08", "40", "55"}, code[:min(2, len(code))])
}

// oneLineError gives an error that pgx spreads over several lines, one for each
// address tried, as one line that names each cause once.
type oneLineError struct{ err error }

func (e oneLineError) Error() string {
	var parts []string
	for line := range strings.Lines(e.err.Error()) {
		if line = strings.TrimSpace(line); !slices.Contains(parts, line) {
			parts = append(parts, line)
		}
	}
	return strings.Join(parts, " ")
}

func (e oneLineError) Unwrap() error { return e.err }

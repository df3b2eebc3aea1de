package relay

import (
	"errors"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// outcomes states for each error that a produce can end with what it is blamed
// on. What is not here is an outage: nobody is blamed, nothing is lost.
var outcomes = map[failureKind][]*kerr.Error{
	kindRow: {
		kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp, kerr.CorruptMessage,
	},
	kindTopic: {
		kerr.UnknownTopicOrPartition, kerr.UnknownTopicID, kerr.InvalidTopicException, kerr.TopicAuthorizationFailed,
	},
	kindOutage: {
		kerr.LeaderNotAvailable, kerr.NotLeaderForPartition, kerr.RequestTimedOut, kerr.BrokerNotAvailable,
		kerr.ReplicaNotAvailable, kerr.NetworkException, kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend,
		kerr.InvalidRequiredAcks, kerr.ClusterAuthorizationFailed, kerr.UnsupportedForMessageFormat,
		kerr.PolicyViolation, kerr.OutOfOrderSequenceNumber, kerr.DuplicateSequenceNumber, kerr.InvalidProducerEpoch,
		kerr.KafkaStorageError, kerr.UnknownProducerID, kerr.FencedLeaderEpoch, kerr.UnknownLeaderEpoch,
		kerr.ThrottlingQuotaExceeded, kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism,
		kerr.IllegalSaslState, kerr.InvalidProducerIDMapping, kerr.ProducerFenced, kerr.UnsupportedCompressionType,
		kerr.InconsistentTopicID, kerr.UnknownServerError,
	},
}

// Every code of the library, known today or added tomorrow, has a kind; those
// that blame a row or a topic are the ones stated above and no others.
func TestEveryKafkaErrorHasAKind(t *testing.T) {
	t.Parallel()
	stated := map[int16]failureKind{}
	for kind, list := range outcomes {
		for _, e := range list {
			stated[e.Code] = kind
		}
	}
	for code := int16(-1); code < 1000; code++ {
		err := kerr.ErrorForCode(code)
		e, known := errors.AsType[*kerr.Error](err)
		if !known || e.Code != code {
			continue // no error, or one that the library does not know
		}
		want := stated[code]
		if want == "" {
			want = kindOutage
		}
		for _, err := range []error{e, fmt.Errorf("produce: %w", e)} {
			if kind, label := classify(err); kind != want || label != e.Message {
				t.Errorf("%s (%d) is %s, %q, want %s", e.Message, code, kind, label, want)
			}
		}
	}
}

func TestClientErrorsHaveAKind(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		err  error
		kind failureKind
		code string
	}{
		{nil, "", ""},
		{errBehind, "", ""},
		{errPending, kindOutage, "TIMEOUT"},
		{errNotSent, kindOutage, "TIMEOUT"},
		{kgo.ErrRecordTimeout, kindOutage, "TIMEOUT"},
		{kgo.ErrRecordRetries, kindOutage, "UNREACHABLE"},
		{kgo.ErrClientClosed, kindOutage, "CLIENT_CLOSED"},
		{&kgo.ErrDataLoss{}, kindOutage, "UNREACHABLE"},
		{errors.New("dial tcp: connection refused"), kindOutage, "UNREACHABLE"},
		{&tooLargeError{size: 2, limit: 1}, kindRow, "MESSAGE_TOO_LARGE"},
		{errInvalidTopicName(""), kindTopic, "INVALID_TOPIC_EXCEPTION"},
	} {
		if kind, code := classify(tc.err); kind != tc.kind || code != tc.code {
			t.Errorf("%v is %q %q, want %q %q", tc.err, kind, code, tc.kind, tc.code)
		}
	}
}

package relay

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// event is one claimed row.
type event struct {
	id        int64
	eventID   string // canonical lower case
	eventType string
	topic     string
	key       string
	payload   []byte    // the jsonb's own text; nil until it is fetched
	stored    int       // bytes that the payload takes in the table
	createdAt time.Time // zero when it has no RFC 3339 form
	recorded  bool      // there is a failure record of it
	attempts  int       // failed ones so far
	dead      *deadLetter
}

// stream is what a failure ends: the events of a key on a topic. On another
// topic the key goes on, since there is no order between two topics.
type stream struct{ topic, key string }

func (e *event) stream() stream { return stream{e.topic, e.key} }

// record builds what Kafka gets. Its timestamp is left to the producer: a
// broker may reject or at once delete a record with an old created_at.
func (e *event) record() *kgo.Record {
	headers := make([]kgo.RecordHeader, 2, 3)
	headers[0] = kgo.RecordHeader{Key: "x-event-id", Value: []byte(e.eventID)}
	headers[1] = kgo.RecordHeader{Key: "x-event-type", Value: []byte(e.eventType)}
	if !e.createdAt.IsZero() {
		headers = append(headers, kgo.RecordHeader{
			Key: "x-created-at", Value: e.createdAt.UTC().AppendFormat(nil, time.RFC3339Nano),
		})
	}
	if e.dead != nil {
		headers = append(headers, e.dead.headers()...)
	}
	return &kgo.Record{
		Topic: e.topic,
		// Never nil: a nil key is spread over the partitions, an empty one is
		// hashed like any other and keeps its order.
		Key:     append([]byte{}, e.key...),
		Value:   e.payload,
		Headers: headers,
	}
}

// size is what the record takes as a batch of its own, the smallest form in
// which a broker can be asked to accept it. The header is counted as the client
// counts it, which is up to five bytes more than the broker: a record between
// the two would be refused by the client, and those behind it let through.
func (e *event) size(r *kgo.Record) int {
	const batchHeader = 66
	const fixed = 1 + 1 + 1 + 1 // attributes, timestamp delta, offset delta, header count
	body := fixed + field(len(r.Key)) + field(len(r.Value))
	for _, h := range r.Headers {
		body += field(len(h.Key)) + field(len(h.Value))
	}
	return batchHeader + field(body)
}

// atMost is a size that the record's does not exceed, found without building it.
func (e *event) atMost() int {
	const envelope = 512 // headers but their variable parts, lengths, the batch
	size := envelope + len(e.payload) + len(e.key) + len(e.eventType)
	if e.dead != nil {
		size += len(e.dead.topic) + len(e.dead.message) + envelope
	}
	return size
}

// field is the size of n bytes behind a zigzag varint of their length.
func field(n int) int {
	size := n + 1
	for v := n << 1; v >= 0x80; v >>= 7 {
		size++
	}
	return size
}

// topicNameValid is Kafka's own rule. It is checked here because a name that the
// broker rejects fails every record that shares a request with it.
func topicNameValid(topic string) bool {
	if topic == "" || topic == "." || topic == ".." || len(topic) > 249 {
		return false
	}
	for i := range len(topic) {
		c := topic[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

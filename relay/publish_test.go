package relay

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// A client that learns of a topic in the middle of a flush would send the first
// record alone. If the broker refuses it, nothing keeps those behind it back.
func TestFirstClaimOfATopicIsSentAsAWhole(t *testing.T) {
	t.Parallel()
	cluster := testenv.FakeKafka(t)
	sent := make(chan struct{}, 100)
	cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		sent <- struct{}{}
		return nil, nil, false
	})
	cfg := DefaultConfig()
	cfg.Brokers = cluster.ListenAddrs()
	admin, err := kgo.NewClient(clientOptions(&cfg)...)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	p, err := newProducer(&cfg, newTopicLimits(admin))
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	p.close() // so that the next client is made with
	p.opts = append(p.opts, kgo.RecordPartitioner(&stallingPartitioner{produced: sent}))

	topic := testenv.Topic(t, cfg.Brokers, 1)
	events := make([]event, 20)
	for i := range events {
		events[i] = event{topic: topic, key: "k", payload: []byte(`{}`)}
	}
	d := newDelivery(events, OrderKey)
	if !p.publish(context.WithoutCancel(t.Context()), d) || len(d.outcome().acked) != len(events) {
		t.Fatal("not all were published")
	}
	if n := len(sent); n != 1 {
		t.Errorf("sent in %d requests, want 1", n)
	}
}

// stallingPartitioner gives a client time to send the first record before it
// says where the second belongs.
type stallingPartitioner struct {
	produced chan struct{}
	records  int
}

func (p *stallingPartitioner) ForTopic(string) kgo.TopicPartitioner { return p }

func (*stallingPartitioner) RequiresConsistency(*kgo.Record) bool { return true }

func (p *stallingPartitioner) Partition(*kgo.Record, int) int {
	if p.records++; p.records == 2 {
		p.stall()
	}
	return 0
}

func (p *stallingPartitioner) stall() {
	select {
	case <-p.produced:
		p.produced <- struct{}{}
	case <-time.After(300 * time.Millisecond): // as it should be
	}
}

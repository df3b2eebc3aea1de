//go:build realkafka

// These tests need a broker that keeps ACLs and quotas; make test-kafka starts
// one.

package relay

import (
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// The right to write is taken away and given back: the topic's rows wait, all
// others flow, and nobody is blamed.
func TestRevokedAccessHoldsUpTheTopicOnly(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	other := testenv.Topic(t, f.cfg.Brokers, 1)
	r := f.start(t, quick)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	inserted := testenv.Insert(t, f.pool, testenv.Sequence(topic, 10, "a", "b")...)
	consumer.WaitFor(t, 10)

	client := admin(t, f.cfg.Brokers)
	everyone := func() *kadm.ACLBuilder {
		return kadm.NewACLs().Topics(topic).ResourcePatternType(kadm.ACLPatternLiteral)
	}
	create := func(b *kadm.ACLBuilder) {
		t.Helper()
		results, err := client.CreateACLs(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		for _, result := range results {
			if result.Err != nil {
				t.Fatal(result.Err)
			}
		}
	}
	// A topic with an ACL is closed to whoever is not named in one.
	create(everyone().Allow("User:*").AllowHosts("*").Operations(kadm.OpAll))
	deny := everyone().Deny("User:*").DenyHosts("*").Operations(kadm.OpWrite)
	create(deny)
	// A broker accepts the change before it goes by it: the rows would still get
	// in.
	testenv.Eventually(t, "the broker refuses writers", func() bool { return !mayWrite(t, f.cfg.Brokers, topic) })

	more := testenv.Sequence(topic, 20, "a", "b")
	for i := range more {
		more[i].Payload = testenv.Payload(100 + i)
	}
	inserted = append(inserted, testenv.Insert(t, f.pool, more...)...)
	testenv.Eventually(t, "the topic is shown as waiting", func() bool {
		return slices.ContainsFunc(r.Health().WaitingTopics, func(w WaitingTopic) bool {
			return w.Topic == topic && strings.Contains(w.Error, "AUTHORIZATION")
		})
	})
	testenv.Insert(t, f.pool, testenv.Sequence(other, 20, "a", "b")...)
	testenv.Consume(t, f.cfg.Brokers, other).WaitFor(t, 20)

	if _, err := client.DeleteACLs(t.Context(), deny); err != nil {
		t.Fatal(err)
	}
	consumer.WaitFor(t, 30)
	consumer.CheckOnce(t, inserted)
	f.waitDrained(t)
	if records := f.failures(t); len(records) > 0 {
		t.Errorf("rows were blamed: %+v", records)
	}
}

// mayWrite asks the broker what it would let this test do to a topic.
func mayWrite(t *testing.T, brokers []string, topic string) bool {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	request := kmsg.NewPtrMetadataRequest()
	request.Topics = []kmsg.MetadataRequestTopic{{Topic: &topic}}
	request.IncludeTopicAuthorizedOperations = true
	answer, err := request.RequestWith(t.Context(), client)
	if err != nil || len(answer.Topics) != 1 {
		t.Fatalf("ask for the rights on %s: %v", topic, err)
	}
	return slices.Contains(kadm.DecodeACLOperations(answer.Topics[0].AuthorizedOperations), kadm.OpWrite)
}

// A broker that throttles this client is slow and not out.
func TestQuotaSlowsDownAndLosesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	f.cfg.ClientID = "throttled-" + topic
	client := admin(t, f.cfg.Brokers)
	quota := kadm.AlterClientQuotaEntry{
		Entity: kadm.ClientQuotaEntity{{Type: "client-id", Name: &f.cfg.ClientID}},
		Ops:    []kadm.AlterClientQuotaOp{{Key: "producer_byte_rate", Value: 20_000}},
	}
	if _, err := client.AlterClientQuotas(t.Context(), []kadm.AlterClientQuotaEntry{quota}); err != nil {
		t.Fatal(err)
	}
	events := testenv.Sequence(topic, 60, "a", "b", "c")
	for i := range events {
		events[i].Payload = strings.Replace(testenv.Payload(i+1), "}", `, "fill": "`+strings.Repeat("x", 2000)+`"}`, 1)
	}
	f.start(t)
	inserted := testenv.Insert(t, f.pool, events...)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	consumer.WaitFor(t, 60)
	f.waitDrained(t)
	consumer.CheckOnce(t, inserted)
	if records := f.failures(t); len(records) > 0 {
		t.Errorf("rows were blamed: %+v", records)
	}
}

//go:build realkafka

// These tests start a broker with TLS and logins; make test-kafka runs them.

package relay

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/outbox-relay/outbox-relay/internal/realkafka"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// securedKafka is a real broker that takes the user relay with the password
// secret, and closes connections that are quiet for a second.
type securedKafka struct {
	*realkafka.Broker
	ca *testenv.Authority
}

func startSecuredKafka(t *testing.T) *securedKafka {
	t.Helper()
	k := &securedKafka{ca: testenv.NewAuthority(t)}
	var err error
	k.Broker, err = realkafka.Start(t.Context(), realkafka.Options{Secured: &realkafka.Secured{
		Certificate: k.ca.Server(t, "127.0.0.1").Certificates[0], User: "relay", Password: "secret", MaxIdle: time.Second,
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Stop(); err != nil {
			t.Error(err)
		}
	})
	k.setPassword(t, "relay", "secret")
	return k
}

// setPassword makes or changes a user of SCRAM.
func (k *securedKafka) setPassword(t *testing.T, user, password string) {
	t.Helper()
	for _, mechanism := range []kadm.ScramMechanism{kadm.ScramSha256, kadm.ScramSha512} { // a request takes one of a user
		upsert := kadm.UpsertSCRAM{User: user, Mechanism: mechanism, Iterations: 8192, Password: password}
		altered, err := admin(t, []string{k.Addr()}).AlterUserSCRAMs(t.Context(), nil, []kadm.UpsertSCRAM{upsert})
		if err == nil {
			err = altered.Error()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (k *securedKafka) fixture(t *testing.T, mechanism string) (f *fixture, topic string) {
	t.Helper()
	f = newFixture(t)
	f.cfg.Brokers, f.cfg.TLS, f.cfg.TLSCAFile = []string{k.SecuredAddr()}, true, k.ca.File
	f.cfg.SASLMechanism, f.cfg.SASLUsername, f.cfg.SASLPassword = mechanism, "relay", "secret"
	return f, testenv.Topic(t, []string{k.Addr()}, 1)
}

// consume reads the first n records of the topic.
func (k *securedKafka) consume(t *testing.T, topic string, n int) *testenv.Consumer {
	t.Helper()
	consumer := testenv.Consume(t, []string{k.Addr()}, topic)
	consumer.WaitFor(t, n)
	return consumer
}

func TestRealKafkaWithTLSAndLogin(t *testing.T) {
	t.Parallel()
	k := startSecuredKafka(t)
	for mechanism := range mechanisms {
		t.Run(mechanism, func(t *testing.T) {
			t.Parallel()
			f, topic := k.fixture(t, mechanism)
			f.start(t)
			inserted := testenv.Insert(t, f.pool, testenv.Sequence(topic, 20, "a")...)
			f.waitDrained(t)
			k.consume(t, topic, len(inserted)).CheckOnce(t, inserted)
		})
		t.Run(mechanism+" refuses", func(t *testing.T) {
			t.Parallel()
			f, _ := k.fixture(t, mechanism)
			f.cfg.SASLPassword = "mistaken"
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			found := checkKafka(ctx, &f.cfg, nil, slog.New(slog.DiscardHandler))
			if ctx.Err() != nil {
				t.Error("a refused login was tried until the end of the time")
			}
			if len(found.Faults) != 1 || !strings.Contains(found.Faults[0].Error(), "KAFKA_SASL_USERNAME and the password") ||
				strings.Contains(found.Faults[0].Error(), "mistaken") {
				t.Errorf("found %v", found.Faults)
			}
		})
	}
	t.Run("password is rotated", func(t *testing.T) {
		t.Parallel()
		f, topic := k.fixture(t, "SCRAM-SHA-512")
		file := filepath.Join(t.TempDir(), "password")
		testenv.WriteFile(t, file, []byte("first\n"))
		k.setPassword(t, "rotated", "first")
		f.cfg.SASLUsername, f.cfg.SASLPassword, f.cfg.SASLPasswordFile = "rotated", "", file
		f.start(t)
		inserted := testenv.Insert(t, f.pool, testenv.Sequence(topic, 5, "a")...)
		f.waitDrained(t)

		k.setPassword(t, "rotated", "second")
		f.log.WaitFor(t, `server refuses, nothing is lost and it is tried until it works: "relay check" tells what to do`)
		inserted = append(inserted, testenv.Insert(t, f.pool, testenv.Event{Topic: topic, Key: "a", Payload: testenv.Payload(6)})...)
		testenv.WriteFile(t, file, []byte("second\n"))
		f.waitDrained(t)
		f.log.WaitFor(t, "server available again")
		k.consume(t, topic, len(inserted)).CheckAtLeastOnce(t, inserted)
	})
}

func TestFirstEventOnRealKafkaAfterItClosedEveryConnection(t *testing.T) {
	t.Parallel()
	k := startSecuredKafka(t)
	f, topic := k.fixture(t, "SCRAM-SHA-512")
	f.start(t)
	inserted := testenv.Insert(t, f.pool, testenv.Sequence(topic, 5, "a")...)
	f.waitDrained(t)
	testenv.Eventually(t, "the broker closed every connection", func() bool { return connections(t, k.SecuredAddr()) == 0 })

	began := time.Now()
	inserted = append(inserted, testenv.Insert(t, f.pool, testenv.Event{Topic: topic, Key: "a", Payload: testenv.Payload(6)})...)
	f.waitDrained(t)
	t.Logf("marked after %s", time.Since(began))
	k.consume(t, topic, len(inserted)).CheckOnce(t, inserted)
}

// connections counts those of this machine to the address, on Linux.
func connections(t *testing.T, addr string) (n int) {
	t.Helper()
	_, port, _ := net.SplitHostPort(addr)
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	const established = "01"
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line) // slot, local and remote address, state
		if strings.HasSuffix(fields[2], fmt.Sprintf(":%04X", number)) && fields[3] == established {
			n++
		}
	}
	return n
}

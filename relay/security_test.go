package relay

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

const securedTopic = "shop.order.confirmed"

// secured is a fixture on a Kafka that encrypts, and asks for a login where an
// option says so.
func secured(t *testing.T, options ...kfake.Opt) *fixture {
	t.Helper()
	ca := testenv.NewAuthority(t)
	cluster := testenv.FakeKafka(t, append(options, kfake.TLS(ca.Server(t, "127.0.0.1")), kfake.SeedTopics(1, securedTopic))...)
	f := newFixture(t)
	f.cfg.Brokers = cluster.ListenAddrs()
	f.cfg.TLS, f.cfg.TLSCAFile = true, ca.File
	return f
}

// checkDelivered reads the topic with the relay's own settings.
func (f *fixture) checkDelivered(t *testing.T, cfg Config, want []string) {
	t.Helper()
	client, err := kgo.NewClient(append(clientOptions(&cfg), kgo.ConsumeTopics(securedTopic))...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var got []string
	for len(got) < len(want) {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("after %d records: %v", len(got), err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			for _, h := range r.Headers {
				if h.Key == "x-event-id" {
					got = append(got, string(h.Value))
				}
			}
		})
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("delivered %v, want %v", got, want)
	}
}

func TestLoginOverTLS(t *testing.T) {
	t.Parallel()
	for mechanism := range mechanisms {
		t.Run(mechanism, func(t *testing.T) {
			t.Parallel()
			f := secured(t, kfake.EnableSASL(), kfake.Superuser(mechanism, "relay", "secret"))
			f.cfg.SASLMechanism, f.cfg.SASLUsername, f.cfg.SASLPassword = mechanism, "relay", "secret"
			if err := f.cfg.Validate(); err != nil {
				t.Fatal(err)
			}
			f.start(t)
			inserted := testenv.Insert(t, f.pool, testenv.Sequence(securedTopic, 20, "a")...)
			f.waitDrained(t)
			f.checkDelivered(t, f.cfg, inserted)
		})
	}
}

// Every connection is gone, as after an hour of quiet.
func TestFirstEventAfterEveryConnectionWasClosed(t *testing.T) {
	t.Parallel()
	listener := &cutListener{}
	f := secured(t, kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-512", "relay", "secret"), kfake.ListenFn(listener.listen))
	f.cfg.SASLMechanism, f.cfg.SASLUsername, f.cfg.SASLPassword = "SCRAM-SHA-512", "relay", "secret"
	r := f.start(t)
	inserted := testenv.Insert(t, f.pool, testenv.Sequence(securedTopic, 3, "a")...)
	f.waitDrained(t)
	testenv.Eventually(t, "asleep", func() bool { return r.Health().BellArmed })

	if listener.cut() == 0 {
		t.Fatal("there was no connection to close")
	}
	began := time.Now()
	inserted = append(inserted, testenv.Insert(t, f.pool, testenv.Event{Topic: securedTopic, Key: "a", Payload: testenv.Payload(4)})...)
	f.waitDrained(t)
	t.Logf("marked after %s", time.Since(began))
	f.checkDelivered(t, f.cfg, inserted)
	if outages := f.log.Entries("server unavailable, nothing is lost and it is tried until it is back"); len(outages) > 0 {
		t.Errorf("a closed connection was told as an outage: %v", outages)
	}
}

// cutListener closes the connections that it has accepted.
type cutListener struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func (l *cutListener) listen(network, addr string) (net.Listener, error) {
	inner, err := net.Listen(network, addr)
	l.Listener = inner
	return l, err
}

func (l *cutListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.mu.Lock()
		l.conns = append(l.conns, conn)
		l.mu.Unlock()
	}
	return conn, err
}

func (l *cutListener) cut() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.conns)
	for _, conn := range l.conns {
		_ = conn.Close()
	}
	l.conns = nil
	return n
}

// What the brokers want is rotated first and the relay's file a while later.
func TestRotatedKafkaCredentialsNeedNoRestart(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(t *testing.T) (f *fixture, rotate func()){
		"password": func(t *testing.T) (*fixture, func()) {
			f := secured(t, kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-256", "relay", "new"))
			file := filepath.Join(t.TempDir(), "password")
			testenv.WriteFile(t, file, []byte("old\n"))
			f.cfg.SASLMechanism, f.cfg.SASLUsername, f.cfg.SASLPasswordFile = "SCRAM-SHA-256", "relay", file
			return f, func() { testenv.WriteFile(t, file, []byte("new\n")) }
		},
		"certificate": func(t *testing.T) (*fixture, func()) {
			ca := testenv.NewAuthority(t)
			server := ca.Server(t, "127.0.0.1")
			server.ClientAuth, server.ClientCAs = tls.RequireAndVerifyClientCert, ca.Pool()
			cluster := testenv.FakeKafka(t, kfake.TLS(server), kfake.SeedTopics(1, securedTopic))
			f := newFixture(t)
			f.cfg.Brokers = cluster.ListenAddrs()
			dir := t.TempDir()
			f.cfg.TLS, f.cfg.TLSCAFile = true, ca.File
			f.cfg.TLSCertFile, f.cfg.TLSKeyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
			testenv.NewAuthority(t).Client(t, f.cfg.TLSCertFile, f.cfg.TLSKeyFile)
			return f, func() { ca.Client(t, f.cfg.TLSCertFile, f.cfg.TLSKeyFile) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, rotate := prepare(t)
			inserted := testenv.Insert(t, f.pool, testenv.Sequence(securedTopic, 5, "a")...)
			f.start(t)
			f.log.WaitFor(t, "server unavailable, nothing is lost and it is tried until it is back")
			rotate()
			f.waitDrained(t)
			f.checkDelivered(t, f.cfg, inserted)
			f.log.WaitFor(t, "server available again")
		})
	}
}

func TestPreflightTellsWhatTheListenerWants(t *testing.T) {
	t.Parallel()
	f := secured(t, kfake.EnableSASL(), kfake.Superuser("PLAIN", "relay", "secret"))
	login := func(c *Config) { c.SASLMechanism, c.SASLUsername, c.SASLPassword = "PLAIN", "relay", "secret" }
	for want, change := range map[string]func(*Config){
		`KAFKA_TLS=false, KAFKA_SASL_MECHANISM="PLAIN" and this user`: func(c *Config) { login(c); c.TLS, c.TLSCAFile = false, "" },
		`KAFKA_TLS=true, KAFKA_SASL_MECHANISM=""`:                     func(*Config) {},
		`KAFKA_SASL_MECHANISM="PLAIN" and this user`:                  func(c *Config) { login(c); c.SASLPassword = "wrong" },
		"KAFKA_TLS_CA_FILE":                            func(c *Config) { login(c); c.TLSCAFile = testenv.NewAuthority(t).File },
		`KAFKA_TLS=true, KAFKA_SASL_MECHANISM="PLAIN"`: func(c *Config) { login(c); c.Brokers = testenv.FakeKafka(t).ListenAddrs() },
		"are for other names than KAFKA_BROKERS": func(c *Config) {
			ca := testenv.NewAuthority(t)
			login(c)
			c.Brokers, c.TLSCAFile = testenv.FakeKafka(t, kfake.TLS(ca.Server(t, "192.0.2.1"))).ListenAddrs(), ca.File
		},
	} {
		cfg := f.cfg
		change(&cfg)
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			found := checkKafka(ctx, &cfg, nil, slog.New(slog.DiscardHandler))
			if len(found.Faults) != 1 || !strings.Contains(found.Faults[0].Error(), want) || strings.Contains(found.Faults[0].Error(), "secret") {
				t.Errorf("found %v, want %q", found.Faults, want)
			}
		})
	}
}

func TestRefusedLoginIsFinalAndSaysWhatToCheck(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("ping: %w", kerr.SaslAuthenticationFailed)
	if cfg := DefaultConfig(); !loginRefused(err) || !strings.Contains(cfg.kafkaAdvice(err), "KAFKA_SASL_USERNAME and the password") {
		t.Errorf("advice is %q", cfg.kafkaAdvice(err))
	}
	if loginRefused(context.DeadlineExceeded) {
		t.Error("a broker that does not answer has refused nothing")
	}
}

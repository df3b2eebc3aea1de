package relay

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
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

// authority signs certificates and stands in a file.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{key: newKey(t), file: filepath.Join(t.TempDir(), "ca.pem")}
	der := sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, a.key, nil)
	var err error
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	writeFile(t, a.file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return a
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// server is the TLS side of brokers with a certificate for the address.
func (a *authority) server(t *testing.T, addr string) *tls.Config {
	t.Helper()
	key := newKey(t)
	der := sign(t, &x509.Certificate{IPAddresses: []net.IP{net.ParseIP(addr)}}, key, a)
	return &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
	}
}

// client writes a certificate and its key.
func (a *authority) client(t *testing.T, certFile, keyFile string) {
	t.Helper()
	key := newKey(t)
	der := sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "relay"}}, key, a)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	writeFile(t, keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// sign signs by the authority, or by the key itself if there is none.
func sign(t *testing.T, template *x509.Certificate, key *ecdsa.PrivateKey, by *authority) []byte {
	t.Helper()
	template.SerialNumber, template.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(time.Hour)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	parent, signer := template, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func writeFile(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

const securedTopic = "shop.order.confirmed"

// secured is a fixture on a Kafka that encrypts, and asks for a login where an
// option says so.
func secured(t *testing.T, options ...kfake.Opt) *fixture {
	t.Helper()
	ca := newAuthority(t)
	cluster := testenv.FakeKafka(t, append(options, kfake.TLS(ca.server(t, "127.0.0.1")), kfake.SeedTopics(1, securedTopic))...)
	f := newFixture(t)
	f.cfg.Brokers = cluster.ListenAddrs()
	f.cfg.TLS, f.cfg.TLSCAFile = true, ca.file
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
			writeFile(t, file, []byte("old\n"))
			f.cfg.SASLMechanism, f.cfg.SASLUsername, f.cfg.SASLPasswordFile = "SCRAM-SHA-256", "relay", file
			return f, func() { writeFile(t, file, []byte("new\n")) }
		},
		"certificate": func(t *testing.T) (*fixture, func()) {
			ca := newAuthority(t)
			server := ca.server(t, "127.0.0.1")
			server.ClientAuth, server.ClientCAs = tls.RequireAndVerifyClientCert, ca.pool()
			cluster := testenv.FakeKafka(t, kfake.TLS(server), kfake.SeedTopics(1, securedTopic))
			f := newFixture(t)
			f.cfg.Brokers = cluster.ListenAddrs()
			dir := t.TempDir()
			f.cfg.TLS, f.cfg.TLSCAFile = true, ca.file
			f.cfg.TLSCertFile, f.cfg.TLSKeyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
			newAuthority(t).client(t, f.cfg.TLSCertFile, f.cfg.TLSKeyFile)
			return f, func() { ca.client(t, f.cfg.TLSCertFile, f.cfg.TLSKeyFile) }
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
		"KAFKA_TLS_CA_FILE":                            func(c *Config) { login(c); c.TLSCAFile = newAuthority(t).file },
		`KAFKA_TLS=true, KAFKA_SASL_MECHANISM="PLAIN"`: func(c *Config) { login(c); c.Brokers = testenv.FakeKafka(t).ListenAddrs() },
		"are for other names than KAFKA_BROKERS": func(c *Config) {
			ca := newAuthority(t)
			login(c)
			c.Brokers, c.TLSCAFile = testenv.FakeKafka(t, kfake.TLS(ca.server(t, "192.0.2.1"))).ListenAddrs(), ca.file
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

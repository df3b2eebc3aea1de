// Package realkafka runs a real Kafka 4.4.0, one node in KRaft mode, for tests
// and benchmarks. It needs Java 17 or later and Maven, which downloads Kafka's
// jars once into a cache.
//
// The broker's data lives in a temporary folder that is removed at the end, and
// it ends when this process does, even when that is killed. It runs under a
// child process of this program, whose entry is [RunChild]; a program that
// calls [Start] must call RunChild first thing in main, and a test in TestMain.
package realkafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	_ "embed"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-relay/outbox-relay/internal/java"
	"github.com/outbox-relay/outbox-relay/internal/keeper"
)

const (
	role    = "kafka"
	version = "4.4.0"
)

//go:embed pom.xml
var pom []byte

// Options say how a broker is started. The zero value is ready to use.
type Options struct {
	// CacheDir is where the jars are kept. The default is the folder
	// outbox-relay in the user's cache.
	CacheDir string
	// Log receives the broker's output, warnings and worse. The default
	// discards it; errors carry its end in any case.
	Log io.Writer
	// Secured adds a listener with TLS and SASL to the plain one.
	Secured *Secured
}

// Secured is a listener that encrypts and asks for a login: SCRAM of the users
// that are made through the plain one, or PLAIN of the one user here.
type Secured struct {
	Certificate    tls.Certificate // for 127.0.0.1
	User, Password string
	// MaxIdle is how long a connection, of either listener, may be quiet before
	// the broker closes it.
	MaxIdle time.Duration
}

// Command is what the child needs to run a broker.
type Command struct {
	Java, Jars  string
	Port        int
	SecuredPort int // 0 is none
	Keystore    []byte
	Login       string
	MaxIdle     time.Duration
}

// State is what the child tells its parent about the broker.
type State struct{ PID int }

// Broker is a Kafka broker.
type Broker struct {
	keeper            *keeper.Keeper
	port, securedPort int

	mu  sync.Mutex
	pid int
}

// RunChild runs the broker and exits when this process was started for it by
// [Start], and returns at once otherwise.
func RunChild() {
	keeper.RunChild(role, func(dir string) keeper.Service { return &service{dir: dir} })
}

// Start starts a broker and waits until it answers: about 8 seconds, and on the
// first use of a machine a download of some 45 MB more. Topics are not created
// by themselves. The caller must Stop it.
//
// It fails, saying what to install, without Java 17 or Maven; when the jars
// cannot be downloaded; when the broker ends before it answers, with its output
// in the error; and when ctx ends first.
func Start(ctx context.Context, o Options) (*Broker, error) {
	b, err := start(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("start Kafka: %w", err)
	}
	return b, nil
}

func start(ctx context.Context, o Options) (*Broker, error) {
	program, err := java.Find(ctx)
	if err != nil {
		return nil, err
	}
	jars, err := java.Jars(ctx, o.CacheDir, "kafka-"+version, pom)
	if err != nil {
		return nil, fmt.Errorf("%w; set KAFKA_BROKERS to use a broker of your own", err)
	}
	port, err := keeper.FreePort()
	if err != nil {
		return nil, err
	}
	command := Command{Java: program, Jars: jars, Port: port}
	if o.Secured != nil {
		if err := command.secure(o.Secured); err != nil {
			return nil, err
		}
	}
	k, err := keeper.Start(role, o.Log)
	if err != nil {
		return nil, err
	}
	b := &Broker{keeper: k, port: port, securedPort: command.SecuredPort}
	err = b.call(ctx, "Start", command)
	if err == nil {
		err = b.waitReady(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return b, nil
}

func (c *Command) secure(s *Secured) (err error) {
	if c.SecuredPort, err = keeper.FreePort(); err != nil {
		return err
	}
	key, err := x509.MarshalPKCS8PrivateKey(s.Certificate.PrivateKey)
	if err != nil {
		return fmt.Errorf("encode key of TLS listener: %w", err)
	}
	c.Keystore = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})
	for _, der := range s.Certificate.Certificate {
		c.Keystore = append(c.Keystore, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	c.Login = fmt.Sprintf("user_%s=%q", s.User, s.Password)
	c.MaxIdle = s.MaxIdle
	return nil
}

// Addr returns the broker's address as host:port. It stays the same over a
// restart.
func (b *Broker) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(b.port)) }

// SecuredAddr is the address of the listener that [Secured] describes.
func (b *Broker) SecuredAddr() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(b.securedPort))
}

// PID returns the process id of the broker, which changes with every restart.
func (b *Broker) PID() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pid
}

// Kill ends the broker with SIGKILL and keeps its data. Only Restart or Stop
// can follow.
func (b *Broker) Kill() error {
	if err := b.call(context.Background(), "Kill", struct{}{}); err != nil {
		return fmt.Errorf("kill Kafka: %w", err)
	}
	return nil
}

// Restart stops the broker in the orderly way, unless it is dead already,
// starts it on the same port and data, and waits until it answers.
func (b *Broker) Restart(ctx context.Context) error {
	err := b.call(ctx, "Restart", struct{}{})
	if err == nil {
		err = b.waitReady(ctx)
	}
	if err != nil {
		return fmt.Errorf("restart Kafka: %w", err)
	}
	return nil
}

// Stop ends the broker and removes its data. Further calls return the error of
// the first.
func (b *Broker) Stop() error {
	if err := b.keeper.Close(); err != nil {
		return fmt.Errorf("stop Kafka: %w", err)
	}
	return nil
}

func (b *Broker) call(ctx context.Context, method string, args any) error {
	var state State
	if err := b.keeper.Call(ctx, method, args, &state); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pid = state.PID
	return nil
}

// waitReady returns once the broker answers requests. It listens only after it
// has joined its own cluster, so that it can create topics then.
func (b *Broker) waitReady(ctx context.Context) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Addr()))
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		attempt, cancel := context.WithTimeout(ctx, time.Second)
		err := client.Ping(attempt)
		cancel()
		if err == nil {
			return nil
		}
		if err := b.keeper.Call(ctx, "Check", struct{}{}, &State{}); err != nil {
			return fmt.Errorf("%w; its last output:\n%s", err, b.keeper.Tail())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w before the broker answered (%w)", ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

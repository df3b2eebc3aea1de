//go:build realkafka

// These tests need Java and Maven, which plain tests must do without; make
// test-kafka runs them.

package realkafka_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-relay/outbox-relay/internal/realkafka"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestBrokerKeepsItsRecordsOverARestartAndAKill(t *testing.T) {
	t.Parallel()
	broker := start(t)
	addr := broker.Addr()
	topic := testenv.Topic(t, []string{addr}, 1)
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.DefaultProduceTopic(topic))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	produce := func(id string) {
		t.Helper()
		record := &kgo.Record{Headers: []kgo.RecordHeader{{Key: "x-event-id", Value: []byte(id)}}}
		if err := client.ProduceSync(t.Context(), record).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}

	produce("before")
	pid := broker.PID()
	if err := broker.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if broker.Addr() != addr || broker.PID() == pid {
		t.Errorf("after the restart: address %s, was %s; process %d, was %d", broker.Addr(), addr, broker.PID(), pid)
	}
	produce("between")
	if err := broker.Kill(); err != nil {
		t.Fatal(err)
	}
	if conn, err := net.Dial("tcp", addr); err == nil {
		_ = conn.Close()
		t.Error("the broker still listens after Kill")
	}
	if err := broker.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	produce("after")
	testenv.Consume(t, []string{addr}, topic).WaitFor(t, 3)
}

func TestStopEndsTheBroker(t *testing.T) {
	t.Parallel()
	broker := start(t)
	for range 2 { // the second call finds it done
		if err := broker.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Kill(broker.PID(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d is still there: %v", broker.PID(), err)
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := realkafka.Start(ctx, realkafka.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

func TestStartNamesWhatIsMissing(t *testing.T) {
	java := filepath.Join(t.TempDir(), "java")
	if err := os.WriteFile(java, []byte("#!/bin/sh\necho 'openjdk version \"17.0.1\"'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct{ path, want string }{
		"without Java":  {t.TempDir(), "apt-get install default-jre-headless"},
		"without Maven": {filepath.Dir(java), "apt-get install maven"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PATH", test.path)
			_, err := realkafka.Start(t.Context(), realkafka.Options{CacheDir: t.TempDir()})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v does not say %q", err, test.want)
			}
		})
	}
}

func start(t *testing.T) *realkafka.Broker {
	t.Helper()
	broker, err := realkafka.Start(t.Context(), realkafka.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := broker.Stop(); err != nil {
			t.Error(err)
		}
	})
	return broker
}

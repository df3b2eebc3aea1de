package main

import (
	"context"
	"net"
	"strconv"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// fakeBroker is a Kafka inside this process that comes back on the same port,
// with what it had stored.
type fakeBroker struct {
	addr    string
	cluster *kfake.Cluster
	start   func() (*kfake.Cluster, error)
}

func startFakeBroker(t *testing.T) *fakeBroker {
	t.Helper()
	dir := t.TempDir()
	first := testenv.FakeKafka(t, kfake.DataDir(dir))
	b := &fakeBroker{addr: first.ListenAddrs()[0], cluster: first}
	_, text, err := net.SplitHostPort(b.addr)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	b.start = func() (*kfake.Cluster, error) {
		return kfake.NewCluster(kfake.NumBrokers(1), kfake.DataDir(dir), kfake.Ports(port))
	}
	t.Cleanup(func() { _ = b.Kill() })
	return b
}

// Addr, Kill and Restart are those of a real broker.
func (b *fakeBroker) Addr() string { return b.addr }

func (b *fakeBroker) Kill() error { //nolint:unparam // as above
	b.cluster.Close()
	return nil
}

func (b *fakeBroker) Restart(context.Context) error {
	b.cluster.Close()
	cluster, err := b.start()
	if err == nil {
		b.cluster = cluster
	}
	return err
}

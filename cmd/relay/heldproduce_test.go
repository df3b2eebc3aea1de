package main

import (
	"bytes"
	"errors"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// heldProduce is a batch that has arrived at the broker, which does nothing
// about it.
type heldProduce struct {
	arrived  chan struct{}
	released chan struct{}
	once     sync.Once
	store    bool

	mu    sync.Mutex
	batch []byte
}

var errDropped = errors.New("dropped by the test")

// holdProduce holds the next batch until it is released, however often it is
// sent, and lets all others pass.
func holdProduce(t *testing.T, kafka *kfake.Cluster) *heldProduce {
	t.Helper()
	h := &heldProduce{arrived: make(chan struct{}), released: make(chan struct{})}
	kafka.ControlKey(int16(kmsg.Produce), func(request kmsg.Request) (kmsg.Response, error, bool) {
		kafka.KeepControl()
		first, held := h.match(request.(*kmsg.ProduceRequest))
		switch {
		case first:
			kafka.SleepControl(func() {
				close(h.arrived)
				<-h.released
			})
			if !h.store {
				return nil, errDropped, true
			}
		case held && !isClosed(h.released):
			return nil, errDropped, true // the client will try again
		}
		return nil, nil, false
	})
	t.Cleanup(func() { h.release(false) })
	return h
}

// match tells the batch by its bytes, which are the same each time it is sent.
func (h *heldProduce) match(request *kmsg.ProduceRequest) (first, held bool) {
	batch := request.Topics[0].Partitions[0].Records
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.batch == nil {
		h.batch = bytes.Clone(batch)
		return true, true
	}
	return false, bytes.Equal(batch, h.batch)
}

func (h *heldProduce) wait(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, "a batch arrives at the broker", func() bool { return isClosed(h.arrived) })
}

// release lets the broker store the batch, or close the connection instead.
// Further calls do nothing.
func (h *heldProduce) release(store bool) {
	h.once.Do(func() {
		h.store = store
		close(h.released)
	})
}

func isClosed(ch chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

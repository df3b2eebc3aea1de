//go:build realkafka

package main

import (
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/realkafka"
)

// ownKafka starts a real broker for a test that kills it.
func ownKafka(t *testing.T) *realkafka.Broker {
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

//go:build !realkafka

package main

import "testing"

// ownKafka starts a broker for a test that kills it.
func ownKafka(t *testing.T) *fakeBroker {
	t.Helper()
	return startFakeBroker(t)
}

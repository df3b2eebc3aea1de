package main

import (
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

func TestMain(m *testing.M) {
	runProcessChild()
	testenv.Main(m)
}

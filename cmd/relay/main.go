// Command relay publishes the rows of a Postgres outbox table to Kafka.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/outbox-relay/outbox-relay/internal/embedpg"
)

func main() {
	embedpg.RunChild()
	os.Exit(run(stopOnSignal(), os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}

// stopOnSignal returns a context that ends with the first SIGINT or SIGTERM,
// which asks for an orderly stop. The second one ends the process: whoever
// sends it does not want to wait, and nothing is lost by it.
func stopOnSignal() context.Context {
	ctx, stop := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		stop()
		<-signals
		fmt.Fprintln(os.Stderr, "relay: second signal, ending at once")
		os.Exit(exitRuntime)
	}()
	return ctx
}

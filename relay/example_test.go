package relay_test

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outbox-relay/outbox-relay/relay"
)

// A service that runs the relay inside its own process.
func Example() {
	cfg := relay.DefaultConfig()
	cfg.DatabaseURL = os.Getenv("DATABASE_URL")
	cfg.Brokers = []string{"kafka-1:9092", "kafka-2:9092"}

	r, err := relay.New(cfg,
		relay.WithLogger(slog.Default()),
		relay.WithRegisterer(prometheus.DefaultRegisterer))
	if err != nil {
		slog.Error("the relay's settings are wrong", "error", err)
		return
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// Returns once ctx is cancelled and everything in flight is marked.
	if err := r.Run(ctx); err != nil {
		slog.Error("the relay stopped", "error", err)
	}
}

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
	logger := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	cfg := relay.DefaultConfig()
	cfg.DatabaseURL = os.Getenv("DATABASE_URL")
	cfg.Brokers = []string{"kafka-1:9092", "kafka-2:9092"}

	r, err := relay.New(cfg,
		relay.WithLogger(logger),
		relay.WithRegisterer(prometheus.DefaultRegisterer))
	if err != nil {
		logger.Error("the relay's settings are wrong", "error", err)
		return
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// Returns once ctx is cancelled and everything in flight is marked.
	if err := r.Run(ctx); err != nil {
		logger.Error("the relay stopped", "error", err)
	}
}

package demo

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
)

// closeTimeout bounds the cleaning up on servers of the user's own.
const closeTimeout = 15 * time.Second

// Servers say where the demo runs. What is left empty is started by the demo:
// a real Postgres in a child process, an in-memory Kafka in this one.
type Servers struct {
	DatabaseURL string
	Brokers     []string
}

// Stage is where the demo plays: an outbox table and a topic of its own.
type Stage struct {
	DatabaseURL string
	Brokers     []string
	Table       pgtable.Name
	Topic       string

	cleanups []func(context.Context) error
}

// Prepare starts the servers that are not given, and makes a schema with the
// tables and a topic. What takes a while is said on progress. The caller must
// Close the stage.
//
// It fails when a server cannot be started or reached, or does not allow a
// schema or a topic to be made. Nothing is left behind then.
func Prepare(ctx context.Context, servers Servers, progress io.Writer, log *slog.Logger) (*Stage, error) {
	id := make([]byte, 4)
	_, _ = rand.Read(id) // never fails
	name := hex.EncodeToString(id)
	stage := &Stage{
		DatabaseURL: servers.DatabaseURL,
		Brokers:     servers.Brokers,
		Table:       pgtable.Name{Schema: "outbox_demo_" + name, Table: "outbox_event"},
		Topic:       "outbox-demo-" + name + ".order.placed",
	}
	for _, step := range []func(context.Context) error{
		func(ctx context.Context) error { return stage.openPostgres(ctx, progress) },
		func(ctx context.Context) error { return stage.createTables(ctx, log) },
		stage.openKafka,
	} {
		if err := step(ctx); err != nil {
			return nil, errors.Join(err, stage.Close())
		}
	}
	return stage, nil
}

// Close drops the schema and the topic and stops the servers that Prepare
// started. Its error names what is left behind.
func (s *Stage) Close() error {
	// The demo's own context has often been cancelled by the time of cleaning up.
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var errs []error
	for _, cleanup := range slices.Backward(s.cleanups) {
		if err := cleanup(ctx); err != nil {
			errs = append(errs, fmt.Errorf("clean up after the demo: %w", err))
		}
	}
	s.cleanups = nil
	return errors.Join(errs...)
}

func (s *Stage) onClose(cleanup func(context.Context) error) {
	s.cleanups = append(s.cleanups, cleanup)
}

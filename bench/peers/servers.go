package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/embedpg"
	"github.com/outbox-relay/outbox-relay/internal/realkafka"
)

// postgresParameters are those of the embedded server that differ from a fresh
// installation. All contenders get them alike, though only Debezium needs the
// logical WAL, which costs the others a little.
var postgresParameters = map[string]string{
	"wal_level": "logical",
	// With the default of 1 GB a checkpoint falls into some runs and not into
	// others.
	"max_wal_size":   "4GB",
	"shared_buffers": "512MB",
}

// servers are what all contenders work on, one after the other.
type servers struct {
	databaseURL string
	brokers     []string
	// postgres is the process id of the server, or 0 when it is not ours.
	postgres int

	stops []func() error
}

// startServers starts the servers that the environment does not name.
func startServers(ctx context.Context, dir string) (*servers, error) {
	s := &servers{databaseURL: os.Getenv("DATABASE_URL")}
	if s.databaseURL == "" {
		server, err := embedpg.Start(ctx, embedpg.Options{Parameters: postgresParameters})
		if err != nil {
			return nil, err
		}
		s.databaseURL, s.postgres = server.URL(), server.PID()
		s.stops = append(s.stops, server.Stop)
	}
	if err := s.start(ctx, dir); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

func (s *servers) start(ctx context.Context, dir string) error {
	if err := s.checkPostgres(ctx); err != nil {
		return err
	}
	if brokers := os.Getenv("KAFKA_BROKERS"); brokers != "" {
		s.brokers = strings.Split(brokers, ",")
		return nil
	}
	log, err := os.Create(dir + "/kafka.log")
	if err != nil {
		return fmt.Errorf("make Kafka's log: %w", err)
	}
	broker, err := realkafka.Start(ctx, realkafka.Options{Log: log})
	if err != nil {
		return err
	}
	s.brokers = []string{broker.Addr()}
	s.stops = append(s.stops, broker.Stop)
	return nil
}

func (s *servers) checkPostgres(ctx context.Context) error {
	level, err := s.setting(ctx, "wal_level")
	if err == nil && level != "logical" {
		err = fmt.Errorf("wal_level is %s: Debezium needs logical, and all contenders are to have the same; ALTER SYSTEM SET wal_level = logical and restart the server", level)
	}
	return err
}

// setting returns a setting of Postgres.
func (s *servers) setting(ctx context.Context, name string) (value string, err error) {
	conn, err := pgx.Connect(ctx, s.databaseURL)
	if err != nil {
		return "", fmt.Errorf("read Postgres's setting %s: %w", name, err)
	}
	defer func() { _ = conn.Close(ctx) }() // nothing depends on a clean goodbye
	if err := conn.QueryRow(ctx, "SELECT current_setting($1)", name).Scan(&value); err != nil {
		return "", fmt.Errorf("read Postgres's setting %s: %w", name, err)
	}
	return value, nil
}

func (s *servers) stop() error {
	var errs []error
	for _, stop := range s.stops {
		errs = append(errs, stop())
	}
	return errors.Join(errs...)
}

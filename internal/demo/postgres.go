package demo

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/embedpg"
	"github.com/outbox-relay/outbox-relay/migrations"
)

// openPostgres starts a server unless one is given. Its settings are those of a
// fresh installation: with fsync off, commits would be faster than any real one.
func (s *Stage) openPostgres(ctx context.Context, progress io.Writer) error {
	if s.DatabaseURL != "" {
		return nil
	}
	fmt.Fprintln(progress, "Starting an embedded Postgres (on first use its binaries are downloaded into a cache, some 10 MB) …")
	server, err := embedpg.Start(ctx, embedpg.Options{})
	if err != nil {
		return fmt.Errorf("%w; use --database-url to run the demo on a server of your own", err)
	}
	s.onClose(func(context.Context) error { return server.Stop() })
	s.DatabaseURL = server.URL()
	return nil
}

// createTables makes the service's schema, with a business table and the outbox.
func (s *Stage) createTables(ctx context.Context, log *slog.Logger) error {
	if err := s.exec(ctx, "CREATE SCHEMA "+s.schema()); err != nil {
		return fmt.Errorf("create schema %s: %w; the demo needs a database that it can reach, and the right to CREATE in it", s.Table.Schema, err)
	}
	s.onClose(func(ctx context.Context) error {
		if err := s.exec(ctx, "DROP SCHEMA "+s.schema()+" CASCADE"); err != nil {
			return fmt.Errorf("schema %s is left behind, drop it: %w", s.Table.Schema, err)
		}
		return nil
	})
	if err := s.exec(ctx, "CREATE TABLE "+s.orders()+" (id text PRIMARY KEY, customer text NOT NULL, item text NOT NULL)"); err != nil {
		return fmt.Errorf("create table orders: %w", err)
	}
	_, err := migrations.Up(ctx, s.DatabaseURL, s.Table, migrations.Options{Logger: log})
	return err
}

func (s *Stage) exec(ctx context.Context, statement string) error {
	conn, err := pgx.Connect(ctx, s.DatabaseURL)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, statement)
	_ = conn.Close(ctx) // what counts is the statement
	return err
}

// countPublished returns how many rows the relay has marked.
func (s *Stage) countPublished(ctx context.Context) (int, error) {
	conn, err := pgx.Connect(ctx, s.DatabaseURL)
	if err != nil {
		return 0, fmt.Errorf("count published rows: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	var n int
	if err := conn.QueryRow(ctx, "SELECT count(published_at) FROM "+s.Table.Sanitize()).Scan(&n); err != nil {
		return 0, fmt.Errorf("count published rows: %w", err)
	}
	return n, nil
}

func (s *Stage) schema() string { return pgx.Identifier{s.Table.Schema}.Sanitize() }
func (s *Stage) orders() string { return s.Table.Sibling("orders") }

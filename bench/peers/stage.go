package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
	"github.com/outbox-relay/outbox-relay/migrations"
)

const (
	partitions   = 6
	closeTimeout = 30 * time.Second
)

var outboxTable = pgtable.Name{Schema: pgtable.DefaultSchema, Table: "outbox_event"}

// stage is what one contender works on: a database of its own with the outbox
// table in it, a folder and a log.
type stage struct {
	*servers
	databaseURL string // of the contender's database; hides that of the servers
	pool        *pgxpool.Pool
	kafka       *kadm.Client
	dir, log    string

	database string
	topics   []string
}

// newStage makes the database, with the doorbell's trigger on its table.
func newStage(ctx context.Context, s *servers, dir, name string) (*stage, error) {
	suffix := strings.ToLower(rand.Text()[:8])
	st := &stage{
		servers: s, database: "peers_" + suffix,
		dir: filepath.Join(dir, name), log: filepath.Join(dir, name+".log"),
	}
	if err := st.open(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare the stage: %w", err), st.close())
	}
	return st, nil
}

func (s *stage) open(ctx context.Context) error {
	if err := os.Mkdir(s.dir, 0o755); err != nil {
		return err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(s.brokers...), kgo.MetadataMinAge(100*time.Millisecond))
	if err != nil {
		return err
	}
	s.kafka = kadm.NewClient(client)
	if err := s.execOn(ctx, s.servers.databaseURL, "CREATE DATABASE "+s.database); err != nil {
		return err
	}
	u, err := url.Parse(s.servers.databaseURL)
	if err != nil {
		return errors.New("DATABASE_URL has to be a URL") // without it in the text: it holds a password
	}
	u.Path = "/" + s.database
	s.databaseURL = u.String()
	if _, err := migrations.Up(ctx, s.databaseURL, outboxTable, migrations.Options{}); err != nil {
		return err
	}
	s.pool, err = pgxpool.New(ctx, s.databaseURL)
	return err
}

// close drops the database and the topics.
func (s *stage) close() error {
	// The run's own context has often been cancelled by the time of cleaning up.
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var errs []error
	if s.kafka != nil {
		if len(s.topics) > 0 {
			_, err := s.kafka.DeleteTopics(ctx, s.topics...)
			errs = append(errs, err)
		}
		s.kafka.Close()
	}
	if s.pool != nil {
		s.pool.Close()
	}
	return errors.Join(append(errs,
		s.execOn(ctx, s.servers.databaseURL, "DROP DATABASE IF EXISTS "+s.database+" WITH (FORCE)"),
		// The next contender must not pay for what this one left to be written.
		s.execOn(ctx, s.servers.databaseURL, "CHECKPOINT"),
	)...)
}

// topic makes a topic for one phase.
func (s *stage) topic(ctx context.Context, phase string) (string, error) {
	name := s.database + ".load." + phase
	const brokersDefault = -1 // replication as the cluster does it by default
	if _, err := s.kafka.CreateTopic(ctx, partitions, brokersDefault, nil, name); err != nil {
		return "", fmt.Errorf("create topic %s: %w", name, err)
	}
	s.topics = append(s.topics, name)
	return name, nil
}

// dropTrigger takes the doorbell off, for contenders without it.
func (s *stage) dropTrigger(ctx context.Context) error {
	return s.exec(ctx, "DROP TRIGGER outbox_relay_notify ON "+outboxTable.Sanitize())
}

func (s *stage) exec(ctx context.Context, statement string) error {
	if _, err := s.pool.Exec(ctx, statement); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
}

func (s *stage) execOn(ctx context.Context, databaseURL, statement string) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }() // what counts is the statement
	if _, err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
}

// await asks again and again until done says yes.
func await(ctx context.Context, timeout time.Duration, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := done()
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
		if ok {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, context.Cause(ctx))
		}
	}
}

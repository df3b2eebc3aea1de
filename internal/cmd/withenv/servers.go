package main

import (
	"context"
	"errors"
	"os"

	"github.com/outbox-relay/outbox-relay/internal/embedpg"
	"github.com/outbox-relay/outbox-relay/internal/realkafka"
)

// servers are those that run for the command, and its environment.
type servers struct {
	env   []string
	stops []func() error
}

// start starts what is asked for and not set in the environment already.
func (s *servers) start(ctx context.Context, withPostgres, withKafka bool) error {
	if withPostgres && os.Getenv("DATABASE_URL") == "" {
		server, err := embedpg.Start(ctx, embedpg.Options{
			// Tests make and drop a database each: many times faster so.
			Parameters: map[string]string{"fsync": "off", "full_page_writes": "off"},
		})
		if err != nil {
			return err
		}
		s.add("DATABASE_URL", server.URL(), server.Stop)
	}
	if withKafka && os.Getenv("KAFKA_BROKERS") == "" {
		broker, err := realkafka.Start(ctx, realkafka.Options{Log: os.Stderr})
		if err != nil {
			return err
		}
		s.add("KAFKA_BROKERS", broker.Addr(), broker.Stop)
	}
	return nil
}

func (s *servers) add(name, value string, stop func() error) {
	s.env = append(s.env, name+"="+value)
	s.stops = append(s.stops, stop)
}

func (s *servers) stop() error {
	var errs []error
	for _, stop := range s.stops {
		errs = append(errs, stop())
	}
	return errors.Join(errs...)
}

package migrations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
)

// Down removes the trigger, its function, the failure table and the version table.
// The outbox table and its index stay, whoever made them. Writers are not
// affected. Stop the relays first: they do not work without the failure table.
// The role has to own the tables.
//
// A failure table that holds anything is not dropped: it is the history of what
// was not published, and without it what was set aside would be tried again. Down
// then changes nothing and returns an error that says so.
//
// It undoes what [Up] recorded; what was made with the script of [Print] alone is
// undone by the tool that ran it.
func Down(ctx context.Context, databaseURL string, table pgtable.Name, opts Options) error {
	err := run(ctx, databaseURL, table, opts, func(ctx context.Context, s *session, _ *pgx.Conn) error {
		return s.down(ctx)
	})
	if err != nil {
		return fmt.Errorf("migrate %s down: %w", table, err)
	}
	return nil
}

func (s *session) down(ctx context.Context) error {
	provider, err := s.provider()
	if err != nil {
		return err
	}
	if _, err := provider.DownTo(ctx, 0); err != nil {
		return err
	}
	_, err = s.db.ExecContext(ctx, "DROP TABLE IF EXISTS "+s.table.Sibling(versionTable))
	return err
}

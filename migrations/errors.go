package migrations

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pressly/goose/v3"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
)

// DifferenceError tells that the table exists and is not the one that the relay
// needs. Nothing was changed. It takes a migration of the service that owns the
// table to mend it.
type DifferenceError struct {
	Table       pgtable.Name
	Differences []string
}

// Error names every difference, on a line each.
func (e *DifferenceError) Error() string {
	return fmt.Sprintf("table %s is not the one the relay needs; nothing was changed, mend it with a migration of the service that owns it:\n  - %s",
		e.Table, strings.Join(e.Differences, "\n  - "))
}

// explain replaces goose's wording by the file that failed, and says what to do
// where a right is missing.
func explain(err error) error {
	if partial, ok := errors.AsType[*goose.PartialError](err); ok {
		err = fmt.Errorf("%s (%s): %w", partial.Failed.Source.Path, partial.Failed.Direction, partial.Err)
	}
	if sqlState(err) == insufficientPrivilege {
		err = fmt.Errorf("%w; it takes TRIGGER on the table and CREATE on its schema, and the ownership of outbox_relay_version and outbox_relay_failure, if they exist", err)
	}
	return err
}

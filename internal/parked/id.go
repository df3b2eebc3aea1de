package parked

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// ID names a row, by its id or by its event id.
type ID struct {
	row   int64
	event string // empty when row is the name
}

// ParseID reads a row id, which is all digits, or an event id, a UUID in any
// spelling with hyphens.
func ParseID(text string) (ID, error) {
	if text != "" && strings.Trim(text, "0123456789") == "" {
		row, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return ID{}, fmt.Errorf("ID %s is above all row ids", text)
		}
		return ID{row: row}, nil
	}
	event, err := uuid.Parse(text)
	if err != nil {
		return ID{}, fmt.Errorf("ID %q is neither a row id (digits) nor an event id (a UUID)", text)
	}
	return ID{event: event.String()}, nil
}

// ParseIDs reads a list of them and names every one that is none.
func ParseIDs(texts []string) ([]ID, error) {
	var (
		ids  []ID
		errs []error
	)
	for _, text := range texts {
		id, err := ParseID(text)
		ids, errs = append(ids, id), append(errs, err)
	}
	return ids, errors.Join(errs...)
}

func (id ID) String() string {
	if id.event != "" {
		return id.event
	}
	return strconv.FormatInt(id.row, 10)
}

// lists parts ids into row ids and event ids, for the arguments of a statement.
func lists(ids []ID) (rows []int64, events []string) {
	rows, events = []int64{}, []string{}
	for _, id := range ids {
		if id.event != "" {
			events = append(events, id.event)
		} else {
			rows = append(rows, id.row)
		}
	}
	return rows, events
}

// namedSQL chooses the records that lists names.
const namedSQL = `(f.row_id = ANY ($1::bigint[]) OR f.event_id = ANY ($2::text[]::uuid[]))`

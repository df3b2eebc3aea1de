package migrations

import (
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
)

const preamble = `-- What "relay migrate" applies for table %[1]s, for a migration tool of your own.
--
-- Run it as the owner of the table and under a lock timeout, for instance
--   SET lock_timeout = '500ms';
-- and again when that expires: the trigger takes a short lock on the table, and
-- writers queue behind whoever waits for it.
--
-- Where the table exists without its index, build that first, outside of a
-- transaction:
--   %[2]s;
`

// Print writes the SQL that [Up] applies for table, as one script for psql or
// for another migration tool. It can be run again, and before or after Up.
func Print(w io.Writer, table pgtable.Name) error {
	folder, err := filesFor(table)
	if err != nil {
		return err
	}
	names, err := fs.Glob(folder, "*.sql")
	if err != nil {
		return err
	}
	var script strings.Builder
	fmt.Fprintf(&script, preamble, table, buildIndex(table))
	for _, name := range names {
		text, err := fs.ReadFile(folder, name)
		if err != nil {
			return err
		}
		script.WriteString("\n")
		script.WriteString(upSection(string(text)))
	}
	if _, err := io.WriteString(w, script.String()); err != nil {
		return fmt.Errorf("print migrations for %s: %w", table, err)
	}
	return nil
}

// upSection returns the part of a migration that goose runs on the way up,
// without goose's marks.
func upSection(text string) string {
	up, _, _ := strings.Cut(text, "\n-- +goose Down")
	var b strings.Builder
	for line := range strings.Lines(up) {
		if !strings.HasPrefix(line, "-- +goose") {
			b.WriteString(line)
		}
	}
	return strings.TrimSpace(b.String()) + "\n"
}

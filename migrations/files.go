package migrations

import (
	"embed"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"unicode/utf8"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
)

const (
	versionTable    = "outbox_relay_version"
	doorbell        = "outbox_relay_notify" // the trigger and its function
	doorbellFile    = "00002_doorbell.sql"
	doorbellVersion = 2
)

// dollarTag quotes the body of the first migration, in which names are inserted.
const dollarTag = "$outbox_relay$"

//go:embed sql/*.sql
var embedded embed.FS

// files is the folder of migrations with the default names replaced by those of
// one outbox table.
type files struct {
	fs.FS
	names *strings.Replacer
}

// filesFor returns the migrations for table. The files themselves are plain SQL
// for public.outbox_event. A single pass exchanges the names, so that a name
// which looks like another one is not exchanged again.
func filesFor(table pgtable.Name) (files, error) {
	if table == (pgtable.Name{}) {
		return files{}, fmt.Errorf("no table name given")
	}
	if strings.Contains(table.Sanitize(), dollarTag) {
		return files{}, fmt.Errorf("table name %s: it must not contain %s", table, dollarTag)
	}
	if table.Table == FailureTable || table.Table == versionTable {
		return files{}, fmt.Errorf("table name %s: the relay makes a table of this name for itself, name another one", table)
	}
	folder, err := fs.Sub(embedded, "sql")
	if err != nil {
		return files{}, err
	}
	failures := table.Sibling(FailureTable)
	return files{folder, strings.NewReplacer(
		"'public.outbox_event'", quoteLiteral(table.Sanitize()),
		"public.outbox_event", table.Sanitize(),
		"public."+doorbell, table.Sibling(doorbell),
		"'public."+FailureTable+"'", quoteLiteral(failures),
		"public."+FailureTable, failures,
		"ix_outbox_event_unpublished", quote(indexName(table)),
	)}, nil
}

// quoteLiteral quotes text as a string of SQL that means the same whatever
// standard_conforming_strings says.
func quoteLiteral(text string) string {
	quoted := "'" + strings.ReplaceAll(text, "'", "''") + "'"
	if strings.Contains(text, `\`) {
		return "E" + strings.ReplaceAll(quoted, `\`, `\\`)
	}
	return quoted
}

// Open returns the named file with its names exchanged.
func (f files) Open(name string) (fs.File, error) {
	file, err := f.FS.Open(name)
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err != nil || info.IsDir() {
		return file, err
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return nil, err
	}
	return renamed{file, strings.NewReader(f.names.Replace(string(text)))}, nil
}

// renamed is an embedded file that is read from its exchanged text.
type renamed struct {
	fs.File
	text io.Reader
}

func (r renamed) Read(p []byte) (int, error) { return r.text.Read(p) }

// indexName returns the name of the partial index: ix_<table>_unpublished, the
// table's name cut so that the whole stays within Postgres' 63 bytes.
func indexName(table pgtable.Name) string {
	const longest = 63 - len("ix__unpublished")
	name := table.Table
	for len(name) > longest {
		_, size := utf8.DecodeLastRuneInString(name)
		name = name[:len(name)-size]
	}
	return "ix_" + name + "_unpublished"
}

// buildIndex returns the statement that builds the partial index of table
// without blocking writers.
func buildIndex(table pgtable.Name) string {
	return "CREATE INDEX CONCURRENTLY " + quote(indexName(table)) +
		" ON " + table.Sanitize() + " (id) WHERE published_at IS NULL"
}

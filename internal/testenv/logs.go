package testenv

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Log is a logger that writes to the test's log and remembers every record, of
// all levels, so that a test can wait for one or count them.
type Log struct {
	*slog.Logger
	entries *entries
}

// Entry is one record of a [Log]. Attributes in groups are named group.key.
type Entry struct {
	Level   slog.Level
	Message string
	Attrs   map[string]any
}

// Logs returns a new Log. It may be written to after the test has ended, which
// then no longer shows.
func Logs(tb testing.TB) *Log {
	tb.Helper()
	e := &entries{tb: tb}
	tb.Cleanup(func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.ended = true
	})
	return &Log{slog.New(&recorder{entries: e}), e}
}

// Entries returns the records so far whose message is one of those given, or
// all records.
func (l *Log) Entries(messages ...string) []Entry {
	l.entries.mu.Lock()
	defer l.entries.mu.Unlock()
	var found []Entry
	for _, entry := range l.entries.all {
		if len(messages) == 0 || slices.Contains(messages, entry.Message) {
			found = append(found, entry)
		}
	}
	return found
}

// WaitFor waits as [Eventually] does for the first record with the message, and
// returns it.
func (l *Log) WaitFor(tb testing.TB, message string) Entry {
	tb.Helper()
	var found []Entry
	Eventually(tb, fmt.Sprintf("log message %q", message), func() bool {
		found = l.Entries(message)
		return len(found) > 0
	})
	return found[0]
}

type entries struct {
	tb testing.TB

	mu    sync.Mutex
	all   []Entry
	ended bool // tb.Log panics from here on
}

// recorder is the slog.Handler of a Log.
type recorder struct {
	entries *entries
	prefix  string
	attrs   []slog.Attr
}

func (r *recorder) Enabled(context.Context, slog.Level) bool { return true }

func (r *recorder) Handle(_ context.Context, record slog.Record) error {
	entry := Entry{Level: record.Level, Message: record.Message, Attrs: map[string]any{}}
	line := &strings.Builder{}
	fmt.Fprintf(line, "%s %s", record.Level, record.Message)
	add := func(name string, value any) {
		entry.Attrs[name] = value
		fmt.Fprintf(line, " %s=%v", name, value)
	}
	for _, attr := range r.attrs {
		flatten("", attr, add)
	}
	record.Attrs(func(attr slog.Attr) bool {
		flatten(r.prefix, attr, add)
		return true
	})
	r.entries.mu.Lock()
	defer r.entries.mu.Unlock()
	r.entries.all = append(r.entries.all, entry)
	if !r.entries.ended {
		r.entries.tb.Log(line.String())
	}
	return nil
}

func flatten(prefix string, attr slog.Attr, add func(string, any)) {
	value := attr.Value.Resolve()
	if value.Kind() != slog.KindGroup {
		add(prefix+attr.Key, value.Any())
		return
	}
	if attr.Key != "" {
		prefix += attr.Key + "."
	}
	for _, member := range value.Group() {
		flatten(prefix, member, add)
	}
}

func (r *recorder) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *r
	with.attrs = slices.Clone(r.attrs)
	for _, attr := range attrs {
		flatten(r.prefix, attr, func(name string, value any) {
			with.attrs = append(with.attrs, slog.Any(name, value))
		})
	}
	return &with
}

func (r *recorder) WithGroup(name string) slog.Handler {
	if name == "" {
		return r
	}
	with := *r
	with.prefix += name + "."
	return &with
}

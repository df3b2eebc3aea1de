package main

import (
	"context"
	"time"
)

// peer is a contender: something that publishes the rows of the outbox table.
type peer interface {
	// prepare makes what it needs in the database.
	prepare(ctx context.Context, s *stage) error
	// start returns once it publishes what is written from then on.
	start(ctx context.Context, s *stage) error
	// pause and resume enclose the writing of a backlog.
	pause(ctx context.Context) error
	resume(ctx context.Context, s *stage) error
	// current is the process that does the work.
	current() *process
	// Stop ends it, and cleanUp removes what else keeps the database in use.
	Stop() error
	cleanUp(ctx context.Context, s *stage) error
	// settings is what it runs with, in Markdown.
	settings() string
}

// contender is a peer with its names. A nil make stands for the writers alone.
type contender struct {
	name, title string
	make        func(config) peer
}

var contenders = []contender{
	{"none", "no relay", nil},
	{"relay", "this relay", func(config) peer { return newRelay() }},
	{"debezium-500", "Debezium, poll 500 ms", newDebezium(500 * time.Millisecond)},
	{"debezium-10", "Debezium, poll 10 ms", newDebezium(10 * time.Millisecond)},
	{"debezium-1", "Debezium, poll 1 ms", newDebezium(time.Millisecond)},
	{"naive", "naive relay", func(config) peer { return newNaive(true) }},
	{"poller", "500 ms poller", func(config) peer { return newNaive(false) }},
}

// rehearsal goes through everything before the others and is not reported. A
// broker whose JVM is new, and a Postgres that still has to make its WAL files,
// doubled the p99 of whoever came first, however many records the broker had been
// sent before; after a minute or two of the load itself they do no longer.
var rehearsal = contender{"rehearsal", "rehearsal, which is not reported", func(config) peer { return newNaive(true) }}

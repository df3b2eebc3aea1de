// Package migrations makes and verifies what the relay needs in Postgres: the
// outbox table with its partial index, the doorbell, a trigger that wakes a
// sleeping relay, and the failure table, which tells of rows that could not be
// published.
//
// [Up] and [Down] run the numbered SQL files of this package, [Print] writes
// them for those who use a migration tool of their own, and [Inspect] compares a
// database with them without changing anything. Postgres 14 or later is needed.
//
// # What is made where
//
// All objects live in the schema of the outbox table: the function and the
// trigger outbox_relay_notify, the failure table outbox_relay_failure and the
// version table outbox_relay_version. Their names are fixed, so a schema serves
// one outbox table.
//
// # A table made by the service
//
// A table that exists is verified and never altered. The relay relies on
//
//   - the ten columns with exactly their types, NOT NULL where required,
//     published_at without default;
//   - id being unique by itself. Who draws it is the service's choice: identity
//     (ALWAYS or BY DEFAULT), serial, or the application. Events are published
//     in its order, so it has to grow;
//   - event_id being unique by itself, so that a repeated write fails;
//   - a valid btree index beginning with id WHERE published_at IS NULL, of any
//     name. It alone is built when it is missing, CONCURRENTLY.
//
// Further columns, indexes, constraints and triggers are the service's business,
// and so are the defaults of the other columns. A partitioned table cannot have
// both unique indexes, which is then named as a difference.
package migrations

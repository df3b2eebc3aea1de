package main

import (
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

func TestMigrate(t *testing.T) {
	t.Parallel()
	env := variables{"DATABASE_URL": testenv.Database(t), "RELAY_TABLE": "shop.outbox_event"}

	relayCommand(t, env, "migrate").wants(t, exitRuntime, "schema", "shop", "does not exist")
	env.exec(t, "CREATE SCHEMA shop")
	relayCommand(t, env, "migrate").wants(t, exitOK, "shop.outbox_event: applied migration 1", "shop.outbox_event: applied migration 2", "shop.outbox_event: applied migration 3")
	relayCommand(t, env, "migrate").wants(t, exitOK, "shop.outbox_event: up to date")
	env.exec(t, "ALTER TABLE shop.outbox_event ALTER COLUMN payload TYPE json USING payload::json")
	relayCommand(t, env, "migrate").wants(t, exitRuntime, "payload", "json")
}

func TestMigratePrintNeedsNoDatabase(t *testing.T) {
	t.Parallel()
	env := variables{"RELAY_TABLE": "shop.outbox_event"}
	got := relayCommand(t, env, "migrate", "--print")
	got.wants(t, exitOK, `outbox_event`, "CREATE TABLE", "CREATE OR REPLACE TRIGGER outbox_relay_notify")
	relayCommand(t, env.with("RELAY_TABLE", "a.b.c"), "migrate", "--print").wants(t, exitUsage, "RELAY_TABLE", "schema.table")

	// What is printed does what migrating does.
	database := variables{"DATABASE_URL": testenv.Database(t), "RELAY_TABLE": "shop.outbox_event"}
	database.exec(t, "CREATE SCHEMA shop")
	database.exec(t, got.stdout)
	relayCommand(t, database.with("KAFKA_BROKERS", "unused:9092").with("RELAY_STARTUP_TIMEOUT", "500ms"), "check").wants(t, exitFindings, "fault    KAFKA_BROKERS")
}

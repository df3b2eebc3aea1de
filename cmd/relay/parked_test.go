package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// newParked has a migrated database with five rows that failed: ids 1 and 2 are
// parked, 3 waits, 4 is discarded and 5 dead-lettered.
func newParked(t *testing.T) variables {
	t.Helper()
	env := newEnvironment(t)
	delete(env, "KAFKA_BROKERS") // these commands do not need it
	testenv.Insert(t, testenv.Pool(t, env["DATABASE_URL"]), testenv.Sequence("shop.order", 5, "a", "b\x1b[31m\tc")...)
	env.exec(t, `UPDATE outbox_event SET published_at = now() WHERE id > 3;
		INSERT INTO outbox_relay_failure (row_id, event_id, topic, partition_key, kind, code, error, attempts, state, first_failed_at, next_attempt_at)
		SELECT id, event_id, topic, partition_key, 'row', 'MESSAGE_TOO_LARGE', 'record of 5 bytes is above 4', 3,
			(ARRAY['parked', 'parked', 'waiting', 'discarded', 'dead_lettered'])[id], '2026-01-31 12:00:00.5+00', '2026-01-31 13:00:00+00'
		FROM outbox_event`)
	return env
}

func (v variables) count(t *testing.T, where string) (n int) {
	t.Helper()
	sql := "SELECT count(*) FROM outbox_relay_failure f LEFT JOIN outbox_event o ON o.id = f.row_id WHERE " + where
	if err := testenv.Pool(t, v["DATABASE_URL"]).QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestParkedList(t *testing.T) {
	t.Parallel()
	env := newParked(t)
	got := relayCommand(t, env, "parked", "list")
	got.wants(t, exitOK, "ROW", "FIRST FAILED", "2026-01-31T12:00:00Z", "MESSAGE_TOO_LARGE", "shop.order", "record of 5 bytes")
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	if len(lines) != 4 {
		t.Errorf("%d lines, want a head and three rows:\n%s", len(lines), got.stdout)
	}
	// A key from a writer must not command the operator's terminal.
	if strings.ContainsAny(got.stdout, "\x1b\t") || !strings.Contains(got.stdout, `"b\x1b[31m\tc"`) {
		t.Errorf("the key is not made harmless: %q", got.stdout)
	}
	relayCommand(t, env, "parked", "list", "--state=discarded").wants(t, exitOK, "discarded")
	relayCommand(t, env, "parked", "list", "--topic=").wants(t, exitOK, "no rows")
}

func TestParkedListJSONHasTheColumnsOfTheTable(t *testing.T) {
	t.Parallel()
	env := newParked(t)
	got := relayCommand(t, env, "parked", "list", "--json", "--key=a", "--limit=1", "--older-than=1h", "--kind=row", "--topic=shop.order")
	got.wants(t, exitOK)
	var objects []map[string]any
	if err := json.Unmarshal([]byte(got.stdout), &objects); err != nil || len(objects) != 1 {
		t.Fatalf("%v in\n%s", err, got.stdout)
	}
	var names []string
	for name := range objects[0] {
		names = append(names, name)
	}
	slices.Sort(names)
	want := []string{
		"attempts", "changed_at", "changed_by", "code", "error", "event_id", "first_failed_at", "kind", "last_failed_at",
		"next_attempt_at", "partition_key", "reason", "row_id", "state", "topic",
	}
	if !slices.Equal(names, want) {
		t.Errorf("the names are %q, want %q", names, want)
	}
	for name, want := range map[string]any{
		"row_id": 1.0, "attempts": 3.0, "state": "parked", "first_failed_at": "2026-01-31T12:00:00.5Z", "reason": nil, "changed_at": nil,
	} {
		if objects[0][name] != want {
			t.Errorf("%s is %v, want %v", name, objects[0][name], want)
		}
	}
	if got := relayCommand(t, env, "parked", "list", "--json", "--topic=none"); got.code != 0 || strings.TrimSpace(got.stdout) != "[]" {
		t.Errorf("an empty list is %q", got.stdout)
	}
	if got := relayCommand(t, env, "parked", "list", "--json", "--state=parked,waiting,discarded,dead_lettered"); json.Unmarshal([]byte(got.stdout), &objects) != nil || len(objects) != 5 {
		t.Errorf("five rows are\n%s", got.stdout)
	}
}

func TestParkedShow(t *testing.T) {
	t.Parallel()
	env := newParked(t)
	got := relayCommand(t, env, "parked", "show", "1")
	got.wants(t, exitOK, "record of 5 bytes is above 4", "order.confirmed", "10 bytes")
	if strings.Contains(got.stdout, `"seq"`) {
		t.Errorf("the payload is shown unasked:\n%s", got.stdout)
	}
	relayCommand(t, env, "parked", "show", "1", "--payload").wants(t, exitOK, `{"seq": 1}`)
	var detail struct {
		EventID string `json:"event_id"`
		Outbox  struct {
			EventType string          `json:"event_type"`
			Payload   json.RawMessage `json:"payload"`
		} `json:"outbox"`
	}
	got = relayCommand(t, env, "parked", "show", "1", "--payload", "--json")
	if err := json.Unmarshal([]byte(got.stdout), &detail); err != nil || detail.Outbox.EventType != "order.confirmed" || !strings.Contains(string(detail.Outbox.Payload), `"seq": 1`) {
		t.Errorf("%v in\n%s", err, got.stdout)
	}
	relayCommand(t, env, "parked", "show", detail.EventID).wants(t, exitOK, "row_id", detail.EventID)
	relayCommand(t, env, "parked", "show", "99").wants(t, exitRuntime, "row 99: there is no failure record")
}

func TestParkedRequeue(t *testing.T) {
	t.Parallel()
	env := newParked(t)
	relayCommand(t, env, "parked", "requeue", "1").wants(t, exitOK, "requeued 1 row\n")
	relayCommand(t, env, "parked", "requeue", "--yes", "2", "4", "5", "99").wants(t, exitRuntime,
		"nothing was changed", "row 4: it was discarded", "row 5: it stands in the dead-letter topic", "row 99: there is no failure record")
	if n := env.count(t, "f.state = 'waiting' AND f.attempts = 0"); n != 1 {
		t.Errorf("%d rows are requeued, want 1", n)
	}
	env.exec(t, "UPDATE outbox_event SET published_at = now() WHERE id = 2")
	relayCommand(t, env, "parked", "requeue", "--all", "--yes", "--topic=none").wants(t, exitOK, "requeued 0 rows\n")
	relayCommand(t, env, "parked", "requeue", "--all", "--yes", "--topic=shop.order").wants(t, exitOK, "requeued 2 rows, left 1 row alone")
}

func TestParkedDiscard(t *testing.T) {
	t.Parallel()
	env := newParked(t)
	relayCommand(t, env, "parked", "discard", "1", "--reason=a test order").wants(t, exitOK, "discarded 1 row\n")
	relayCommand(t, env, "parked", "discard", "1", "--reason=again").wants(t, exitRuntime, "row 1: it was discarded by ", "already")
	if n := env.count(t, "f.row_id = 1 AND f.reason = 'a test order' AND f.changed_by = session_user AND o.published_at IS NOT NULL"); n != 1 {
		t.Error("the row is not discarded with its reason, user and published_at")
	}
	relayCommand(t, env, "parked", "discard", "2", "3", "--reason=x", "--yes").wants(t, exitOK, "discarded 2 rows\n")
	relayCommand(t, env, "parked", "list").wants(t, exitOK, "no rows")
}

// A question on the terminal is answered by whoever sits there.
func TestBulkChangesAskOnATerminal(t *testing.T) {
	t.Parallel()
	env := newParked(t)
	for _, tt := range []struct {
		name, answer string
		args         []string
		code         int
		want         string
	}{
		{"no", "n\n", []string{"parked", "discard", "1", "2", "--reason=x"}, exitRuntime, "Discard 2 rows for good? [y/N]"},
		{"an empty line", "\n", []string{"parked", "requeue", "--all"}, exitRuntime, "Requeue 3 rows? [y/N]"},
		{"the end of the input", "", []string{"parked", "requeue", "1", "2"}, exitRuntime, "not confirmed, nothing was changed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			asking(t.Context(), env, tt.answer, tt.args...).wants(t, tt.code, tt.want, "not confirmed")
			if n := env.count(t, "f.changed_at IS NOT NULL"); n != 0 {
				t.Errorf("%d rows were changed", n)
			}
		})
	}
}

func TestBulkChangesGoOnAfterAYes(t *testing.T) {
	t.Parallel()
	env := newParked(t)
	asking(t.Context(), env, "y\n", "parked", "requeue", "--all").wants(t, exitOK, "Requeue 3 rows? [y/N]", "requeued 3 rows")
	asking(t.Context(), env, "YES\n", "parked", "discard", "1", "2", "--reason=x").wants(t, exitOK, "discarded 2 rows")
}

// asking runs a command line at a terminal with somebody who answers.
func asking(ctx context.Context, env variables, answer string, args ...string) result {
	stdout, stderr := &testenv.Output{}, &testenv.Output{}
	p := &program{env: environment(env.list()), stdin: strings.NewReader(answer), stdout: stdout, stderr: stderr, interactive: true}
	code := p.execute(ctx, args)
	return result{code, stdout.String(), stderr.String()}
}

func TestParkedSaysWhatIsWrongWithTheDatabase(t *testing.T) {
	t.Parallel()
	env := newParked(t)
	down := env.with("DATABASE_URL", env.edited(t, func(u *url.URL) { u.Host, u.User = closedPort(t), url.UserPassword("u", secret) }))
	got := relayCommand(t, down, "parked", "list")
	got.wants(t, exitRuntime, "the database cannot be reached", "check host, port and network")
	if strings.Contains(got.stderr, secret) {
		t.Errorf("the password is in the output: %s", got.stderr)
	}
	env.exec(t, "DROP TABLE outbox_relay_failure")
	relayCommand(t, env, "parked", "list").wants(t, exitRuntime, "it is missing", `"relay migrate"`)
	for _, args := range [][]string{{"run"}, {"check"}} {
		got := relayCommand(t, env.with("KAFKA_BROKERS", strings.Join(testenv.Brokers(t), ",")), args...)
		if got.code == exitOK || !strings.Contains(got.stdout+got.stderr, `failure table "public"."outbox_relay_failure": it is missing: "relay migrate"`) {
			t.Errorf("%q without the failure table: %d\n%s%s", args, got.code, got.stdout, got.stderr)
		}
	}
}

func TestReplay(t *testing.T) {
	t.Parallel()
	env := newEnvironment(t)
	topic := testenv.Topic(t, testenv.Brokers(t), 3)
	testenv.Insert(t, testenv.Pool(t, env["DATABASE_URL"]), testenv.Sequence(topic, 30, "a", "b")...)
	env.exec(t, "UPDATE outbox_event SET published_at = '2026-01-31 12:00:00+00'::timestamptz + id * interval '1 second'")
	args := []string{"replay", "--topic=" + topic, "--from=2026-01-31T12:00:11Z", "--to=2026-01-31T14:00:21+02:00"}

	relayCommand(t, env, append(args, "--dry-run")...).wants(t, exitOK, "10 events of topic "+topic, "first: row 11,", "last : row 20,", "published at 2026-01-31T12:00:20Z")
	asking(t.Context(), env, "no\n", args...).wants(t, exitRuntime, "Publish 10 events to "+topic+" again?", "not confirmed")
	asking(t.Context(), env, "y\n", append(args, "--key=a")...).wants(t, exitOK, "published 5 events again")
	relayCommand(t, env, append(args, "--yes", "--rate=1000/s", "--key=b")...).wants(t, exitOK, "published 5 events again")
	for _, d := range testenv.Consume(t, testenv.Brokers(t), topic).WaitFor(t, 10) {
		if at, ok := d.Header("x-replayed-at"); !ok || d.Seq < 11 || d.Seq > 20 {
			t.Errorf("event %d, replayed at %q", d.Seq, at)
		}
	}
	relayCommand(t, env, append(args, "--yes", "--key=c")...).wants(t, exitOK, "no event of topic")
}

func TestReplaySaysWhatItLacks(t *testing.T) {
	t.Parallel()
	env := newEnvironment(t)
	args := []string{"replay", "--topic=a", "--from=2026-01-31T12:00:00Z", "--to=2026-01-31T14:00:00Z", "--dry-run"}
	role := "test_" + strings.ToLower(rand.Text())
	env.exec(t, "CREATE ROLE "+role)
	pool := testenv.Pool(t, env["DATABASE_URL"])
	t.Cleanup(func() {
		if _, err := pool.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	asRole := env.with("DATABASE_URL", env.edited(t, func(u *url.URL) {
		q := u.Query()
		q.Set("role", role)
		u.RawQuery = q.Encode()
	}))
	relayCommand(t, asRole, args...).wants(t, exitRuntime, `GRANT SELECT ON "public"."outbox_event", "public"."outbox_relay_failure"`)
	relayCommand(t, asRole, "parked", "list").wants(t, exitRuntime, "permission denied", `GRANT SELECT, UPDATE ON "public"."outbox_relay_failure"`)
	env.exec(t, "GRANT SELECT ON outbox_event, outbox_relay_failure TO "+role)
	relayCommand(t, asRole, args...).wants(t, exitOK, "no event of topic a")
	relayCommand(t, asRole, "parked", "list").wants(t, exitOK, "no rows")
	relayCommand(t, env.with("RELAY_TABLE", "public.other"), args...).wants(t, exitRuntime, "table public.other does not exist")
}

func TestReplaySaysWhereToGoOnWhenKafkaFails(t *testing.T) {
	t.Parallel()
	env := newEnvironment(t).with("RELAY_PUBLISH_TIMEOUT", "2s")
	topic := testenv.Topic(t, testenv.Brokers(t), 1)
	testenv.Insert(t, testenv.Pool(t, env["DATABASE_URL"]), testenv.Sequence(topic, 3, "a")...)
	env.exec(t, "UPDATE outbox_event SET published_at = '2026-01-31 12:00:00+00', id = DEFAULT") // ids 4 to 6
	args := []string{"replay", "--topic=" + topic, "--from=2026-01-31T12:00:00Z", "--to=" + time.Now().UTC().Format(time.RFC3339), "--yes"}
	relayCommand(t, env.with("KAFKA_BROKERS", closedPort(t)), args...).
		wants(t, exitRuntime, "replay stopped after 0 events", "the next is row 4", "--from-id=4")
	relayCommand(t, env, append(args, "--from-id=5")...).wants(t, exitOK, "published 2 events again")
}

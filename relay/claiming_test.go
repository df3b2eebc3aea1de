package relay

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

func TestCutKeepsAnUnbrokenRunOfEachKey(t *testing.T) {
	t.Parallel()
	row := func(id int64, key string, mine bool) lockedRow {
		return lockedRow{event: event{id: id, key: key}, mine: mine}
	}
	for name, tc := range map[string]struct {
		rows  []lockedRow
		order Order
		want  []int64
		held  []string
	}{
		"all mine":                  {[]lockedRow{row(1, "a", true), row(2, "b", true), row(3, "a", true)}, OrderKey, []int64{1, 2, 3}, nil},
		"head held":                 {[]lockedRow{row(1, "a", false), row(2, "a", true), row(3, "b", true)}, OrderKey, []int64{3}, []string{"a"}},
		"held in the middle":        {[]lockedRow{row(1, "a", true), row(2, "a", false), row(3, "a", true)}, OrderKey, []int64{1}, []string{"a"}},
		"held twice, told once":     {[]lockedRow{row(1, "a", false), row(2, "a", false)}, OrderKey, nil, []string{"a"}},
		"joined in any order":       {[]lockedRow{row(3, "a", true), row(1, "a", true), row(2, "a", true)}, OrderKey, []int64{1, 2, 3}, nil},
		"without the rule":          {[]lockedRow{row(1, "a", false), row(2, "a", true)}, OrderNone, []int64{2}, nil},
		"no more than a batch":      {[]lockedRow{row(1, "a", true), row(2, "a", true), row(3, "b", true), row(4, "a", true)}, OrderKey, []int64{1, 2, 3}, nil},
		"nothing there":             {nil, OrderKey, nil, nil},
		"the empty key is like any": {[]lockedRow{row(1, "", false), row(2, "", true)}, OrderKey, nil, []string{""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := cut(tc.rows, tc.order, 3)
			if got := ids(c.events); !slices.Equal(got, tc.want) && len(got)+len(tc.want) > 0 {
				t.Errorf("publishes %v, want %v", got, tc.want)
			}
			if !slices.Equal(c.held, tc.held) {
				t.Errorf("held keys %q, want %q", c.held, tc.held)
			}
			if c.walked != len(tc.rows) {
				t.Errorf("walked %d of %d", c.walked, len(tc.rows))
			}
		})
	}
}

func TestSeveralRelaysKeepHotKeysInOrderAndRepeatNothing(t *testing.T) {
	t.Parallel()
	for _, relays := range []int{2, 5} {
		t.Run(fmt.Sprintf("%d relays", relays), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			topic := testenv.Topic(t, f.cfg.Brokers, 4)
			keys := []string{"a", "b", "c", "d"}
			for range relays {
				f.start(t, func(cfg *Config) { cfg.PollInterval = 20 * time.Millisecond })
			}
			consumer := testenv.Consume(t, f.cfg.Brokers, topic)
			var (
				mu       sync.Mutex
				inserted []string
				writers  sync.WaitGroup
			)
			const each = 500
			for _, key := range keys {
				writers.Go(func() {
					for i := range each {
						id, err := testenv.InsertInto(t.Context(), f.pool, pgx.Identifier{"outbox_event"},
							testenv.Event{Topic: topic, Key: key, Payload: testenv.Payload(i + 1)})
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						inserted = append(inserted, id...)
						mu.Unlock()
					}
				})
			}
			writers.Wait()
			consumer.WaitFor(t, each*len(keys))
			f.waitDrained(t)
			consumer.CheckOnce(t, inserted)
		})
	}
}

// A transaction that drew its id first and commits last is neither skipped nor
// kept waiting.
func TestLateCommitWithALowerIDIsPublished(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	f.start(t)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)

	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	late := testenv.Insert(t, tx, testenv.Event{Topic: topic, Key: "late", Payload: testenv.Payload(1)})
	others := testenv.Insert(t, f.pool, testenv.Sequence(topic, 300, "other")...)
	consumer.WaitFor(t, 300)
	f.waitDrained(t)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	consumer.WaitFor(t, 301)
	consumer.CheckOnce(t, append(others, late...))
}

// Another session holds the head of a key for good: all other keys flow, and
// the held one goes on when it is let go.
func TestHeldRowsStopOnlyTheirKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 4)
	// The held rows fill several claims, and come first.
	var held []string
	for i := range 20 {
		held = append(held, fmt.Sprintf("held-%d", i))
	}
	first := testenv.Insert(t, f.pool, testenv.Sequence(topic, 2000, held...)...)
	second := testenv.Insert(t, f.pool, testenv.Sequence(topic, 500, "free-1", "free-2")...)
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT FROM outbox_event WHERE partition_key LIKE 'held-%' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	f.start(t)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	for _, d := range consumer.WaitFor(t, 500) {
		if key := string(d.Key); key != "free-1" && key != "free-2" {
			t.Fatalf("key %s was published while its head was held", key)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	consumer.WaitFor(t, 2500)
	consumer.CheckOnce(t, append(first, second...))
}

// What an administrator may have set on the relay's role must not get in its
// way.
func TestRoleSettingsDoNotMatter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	role, url := f.role(t, topic)
	f.exec(t, fmt.Sprintf(`
		ALTER ROLE %[1]s SET default_transaction_isolation = 'serializable';
		ALTER ROLE %[1]s SET statement_timeout = '100ms';
		ALTER ROLE %[1]s SET lock_timeout = '1ms';
		ALTER ROLE %[1]s SET idle_in_transaction_session_timeout = '1ms';
		ALTER ROLE %[1]s SET search_path = 'pg_catalog';
		ALTER ROLE %[1]s SET timezone = 'Pacific/Chatham';
		ALTER ROLE %[1]s SET datestyle = 'German'`, role))
	f.start(t, func(cfg *Config) { cfg.DatabaseURL = url })
	inserted := testenv.Insert(t, f.pool, testenv.Sequence(topic, 500, "a", "b")...)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	consumer.WaitFor(t, 500)
	f.waitDrained(t)
	consumer.CheckOnce(t, inserted)
}

// The relay's connections may go through poolers and drivers' settings of all
// kinds: no state outside of transactions, and any of pgx's modes.
func TestEveryStatementModeOfTheDriverWorks(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			topic := testenv.Topic(t, f.cfg.Brokers, 1)
			f.start(t, func(cfg *Config) { cfg.DatabaseURL += "&default_query_exec_mode=" + mode })
			inserted := testenv.Insert(t, f.pool, testenv.Sequence(topic, 200, "a", "b")...)
			consumer := testenv.Consume(t, f.cfg.Brokers, topic)
			consumer.WaitFor(t, 200)
			f.waitDrained(t)
			consumer.CheckOnce(t, inserted)
		})
	}
}

// Without the order rule, held rows mean nothing and must not fill the window.
func TestHeldRowsStopNobodyWithoutTheRule(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	testenv.Insert(t, f.pool, testenv.Sequence(topic, 300, "held")...)
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT FROM outbox_event FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	free := testenv.Insert(t, f.pool, testenv.Sequence(topic, 20, "free")...)
	f.start(t, func(cfg *Config) { cfg.Order = OrderNone })
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	consumer.WaitFor(t, 20)
	consumer.CheckOnce(t, free)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.waitDrained(t)
}

package relay

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
)

// The relay's statements must walk the partial index whatever the statistics
// say. Each of these states has made a planner choose otherwise, at 0.2 to 2
// seconds a claim.
func TestPlansStayOnThePartialIndex(t *testing.T) {
	t.Parallel()
	states := []struct {
		name  string
		setUp string
	}{
		{"never analysed", fill(1000, "NULL")},
		{"analysed while empty", `ANALYZE outbox_event; ` + fill(20_000, "NULL")},
		{"many published rows, few not", fill(300_000, "now()") + `; ANALYZE outbox_event; ` + fill(20, "NULL")},
		{"all unpublished when analysed, published since", fill(100_000, "NULL") + `; ANALYZE outbox_event;
			UPDATE outbox_event SET published_at = now(); ` + fill(20, "NULL")},
		{"a backlog", fill(100_000, "NULL") + `; ANALYZE outbox_event`},
	}
	for _, state := range states {
		t.Run(state.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			// No autovacuum: it would correct the statistics.
			f.exec(t, `ALTER TABLE outbox_event SET (autovacuum_enabled = false)`)
			f.exec(t, state.setUp)
			f.checkPlans(t)
		})
	}
}

func fill(rows int, publishedAt string) string {
	return fmt.Sprintf(`INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, event_type, payload, topic, partition_key, published_at)
		SELECT gen_random_uuid(), 'a', '1', 'a.b', '{}', 'a.b.c', 'key-' || n %% 1000, %s FROM generate_series(1, %d) n`, publishedAt, rows)
}

func (f *fixture) checkPlans(t *testing.T) {
	t.Helper()
	table := pgtable.Name{Schema: "public", Table: "outbox_event"}
	sql := newStatements(table, &f.cfg)
	cfg := f.cfg
	cfg.Order = OrderNone
	anyOrder := newStatements(table, &cfg)
	cfg = f.cfg
	cfg.OnPoison = Block
	blocking := newStatements(table, &cfg)
	const (
		none       = `'{}'::text[]`
		claimTypes = "bigint, text, int, int, int, text[], text[], bigint[], int"
		lookTypes  = "bigint, text, text[], text[]"
	)
	for _, s := range []struct {
		name, sql, types, args string
		walks                  bool // on the partial index, in its order
		bare                   bool // also without the relay's settings
	}{
		{"claim", sql.claim, claimTypes, `0, NULL, 50, 1, 0, ` + none + `, ` + none + `, '{}', 8192`, true, false},
		{"claim of a slice", sql.claim, claimTypes, `1000, 'x', 1000, 2, 1, '{a,b}', '{c}', '{1,2}', 8192`, true, false},
		{"claim in any order", anyOrder.claim, claimTypes, `0, NULL, 50, 1, 0, ` + none + `, ` + none + `, '{}', 8192`, true, false},
		{"claim that blocks", blocking.claim, claimTypes, `0, NULL, 50, 1, 0, ` + none + `, ` + none + `, '{}', 8192`, true, false},
		{"look", sql.look, lookTypes, `0, NULL, ` + none + `, ` + none, true, true},
		{"lowest", sql.lowest, lookTypes, `0, NULL, ` + none + `, ` + none, true, false},
		{"highest", sql.highest, "", "", false, false},
		{"fetch", sql.fetch, "bigint[]", `'{1,2,3}'`, false, false},
		{"sample", sql.sample, "bigint, text", `0, NULL`, true, false},
		{"mark", sql.mark, "bigint[]", `'{1,2,3}'`, false, false},
	} {
		f.checkPlan(t, s.name, s.walks, f.explain(t, sql.settings, s.sql, s.types, s.args))
		if s.bare {
			f.checkPlan(t, s.name+", bare", s.walks, f.explain(t, "SELECT 1", s.sql, s.types, s.args))
		}
	}
}

func (f *fixture) checkPlan(t *testing.T, name string, walks bool, plan []planNode) {
	t.Helper()
	walk := false
	for _, node := range plan {
		if node.Relation != "outbox_event" {
			if strings.Contains(node.Type, "Sort") {
				t.Errorf("%s sorts: the walk is not in index order\n%v", name, plan)
			}
			continue
		}
		walk = walk || node.Index == "ix_outbox_event_unpublished" && node.Alias != "o"
		if !strings.HasPrefix(node.Type, "Index") && node.Type != "ModifyTable" {
			t.Errorf("%s: %s on the table\n%v", name, node.Type, plan)
		}
	}
	if walks && !walk {
		t.Errorf("%s does not walk the partial index\n%v", name, plan)
	}
}

type planNode struct {
	Type     string `json:"Node Type"`
	Relation string `json:"Relation Name"`
	Alias    string `json:"Alias"`
	Index    string `json:"Index Name"`
	Plans    []planNode
}

// explain returns the nodes of the plan that the relay gets under settings.
func (f *fixture) explain(t *testing.T, settings, statement, types, args string) []planNode {
	t.Helper()
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	run := func(script string) {
		t.Helper()
		if _, err := tx.Exec(t.Context(), script, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%s: %v", script, err)
		}
	}
	if types != "" {
		types, args = "("+types+")", "("+args+")"
	}
	run(settings)
	run("DEALLOCATE ALL")
	run("PREPARE explained" + types + " AS " + statement)
	var text string
	err = tx.QueryRow(t.Context(), "EXPLAIN (FORMAT JSON) EXECUTE explained"+args, pgx.QueryExecModeSimpleProtocol).Scan(&text)
	if err != nil {
		t.Fatal(err)
	}
	var explained []struct{ Plan planNode }
	if err := json.Unmarshal([]byte(text), &explained); err != nil {
		t.Fatal(err)
	}
	return flatten(explained[0].Plan)
}

func flatten(n planNode) []planNode {
	nodes := []planNode{n}
	for _, child := range n.Plans {
		nodes = append(nodes, flatten(child)...)
	}
	nodes[0].Plans = nil
	return nodes
}

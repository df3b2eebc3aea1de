package migrations_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
	"github.com/outbox-relay/outbox-relay/migrations"
)

func TestDownLeavesTheTableAndNothingElse(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	conn := connect(t, url)
	up(t, url)
	exec(t, conn, insertOne)
	before := catalog(t, conn)

	if err := migrations.Down(t.Context(), url, table, migrations.Options{}); err != nil {
		t.Fatal(err)
	}
	if got, want := catalog(t, conn), without(before, "outbox_relay"); got != want {
		t.Errorf("Down left\n%s\nwant\n%s", got, want)
	}
	if n := query[int64](t, conn, "SELECT count(*) FROM outbox_event"); n != 1 {
		t.Errorf("%d rows are left, want 1", n)
	}
	if result := up(t, url); !slices.Equal(result.Applied, []int64{1, 2, 3}) {
		t.Errorf("Up after Down applied %v, want 1 to 3", result.Applied)
	}
	wantReady(t, conn, table)
}

func TestDownWhereThereIsNothing(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	for range 2 {
		if err := migrations.Down(t.Context(), url, table, migrations.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	if n := query[int64](t, connect(t, url), "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace"); n != 0 {
		t.Errorf("Down left %d objects, want none", n)
	}
}

func TestPrintMakesWhatUpMakes(t *testing.T) {
	t.Parallel()
	byUp, byPrint := testenv.Database(t), testenv.Database(t)
	up(t, byUp)
	conn := connect(t, byPrint)
	var script strings.Builder
	if err := migrations.Print(&script, table); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(script.String(), "goose") || strings.Contains(script.String(), "DROP") {
		t.Errorf("the script has marks of goose or drops something:\n%s", script.String())
	}
	for range 2 {
		exec(t, conn, script.String())
		got, want := catalog(t, conn), without(catalog(t, connect(t, byUp)), "outbox_relay_version")
		if got != want {
			t.Errorf("the script made\n%s\nwant\n%s", got, want)
		}
	}
	if result := up(t, byPrint); !slices.Equal(result.Applied, []int64{1, 2, 3}) {
		t.Errorf("Up after the script applied %v, want 1 to 3", result.Applied)
	}
	wantReady(t, conn, table)
}

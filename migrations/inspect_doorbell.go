package migrations

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// doorbellSQL compares the trigger's condition as Postgres prints it, with the
// table's own oid in it: a trigger made with that of another table would ring by
// the other's bell.
const doorbellSQL = `
SELECT t.tgenabled::text, t.tgtype::int4,
       coalesce(pg_catalog.pg_get_expr(t.tgqual, t.tgrelid) = pg_catalog.format(
           '(NOT pg_try_advisory_xact_lock_shared(1868724322, ((''%s''::regclass)::oid)::integer))',
           pg_catalog.replace(t.tgrelid::pg_catalog.regclass::text, '''', '''''')), false),
       p.prosrc
FROM pg_catalog.pg_trigger t
JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
WHERE t.tgrelid = $1::int8::oid AND t.tgname = '` + doorbell + `' AND NOT t.tgisinternal`

// afterInsertStatement is pg_trigger.tgtype of AFTER INSERT FOR EACH STATEMENT
// and nothing else: with UPDATE, the relay's own marks would wake it.
const afterInsertStatement = 1 << 2

func (r *Report) inspectDoorbell(ctx context.Context, q Querier, relid int64) error {
	var (
		enabled, body string
		kind          int
		condition     bool
	)
	err := q.QueryRow(ctx, doorbellSQL, relid).Scan(&enabled, &kind, &condition, &body)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		r.DoorbellFault = "trigger " + doorbell + " is missing"
	case err != nil:
		return err
	case enabled == "D":
		r.DoorbellFault = "trigger " + doorbell + " is disabled"
	case enabled == "R":
		r.DoorbellFault = "trigger " + doorbell + " is enabled for replication only"
	case kind != afterInsertStatement:
		r.DoorbellFault = "trigger " + doorbell + " does not fire after every INSERT statement and only there"
	case !condition:
		r.DoorbellFault = "trigger " + doorbell + " has another condition"
	case !sameText(body, doorbellBody):
		r.DoorbellFault = "function " + doorbell + "() is of another version"
	}
	return nil
}

// doorbellBody is the body of the trigger's function, as pg_proc.prosrc holds it.
var doorbellBody = mustReadDoorbellBody()

func mustReadDoorbellBody() string {
	text, err := embedded.ReadFile("sql/" + doorbellFile)
	if err != nil {
		panic(err)
	}
	_, rest, begins := strings.Cut(string(text), "AS $$")
	body, _, ends := strings.Cut(rest, "$$;")
	if !begins || !ends {
		panic(fmt.Sprintf("%s holds no function body", doorbellFile))
	}
	return body
}

// sameText ignores white space: other migration tools indent the script anew.
func sameText(a, b string) bool {
	return strings.Join(strings.Fields(a), " ") == strings.Join(strings.Fields(b), " ")
}

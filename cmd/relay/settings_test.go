package main

import (
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

const secret = "s3cret-of-the-database"

var valid = variables{
	"DATABASE_URL":  "postgres://relay:" + secret + "@localhost/shop",
	"KAFKA_BROKERS": "localhost:9092",
}

func TestSettingsFaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		env  variables
		want []string
	}{
		{"nothing is set", variables{}, []string{"DATABASE_URL is required", "KAFKA_BROKERS is required"}},
		{"an empty value is a missing one", variables{"DATABASE_URL": "", "KAFKA_BROKERS": ""}, []string{"DATABASE_URL is required", "KAFKA_BROKERS is required"}},
		{"only separators are no brokers", valid.with("KAFKA_BROKERS", " , "), []string{"KAFKA_BROKERS is required"}},
		{"no number", valid.with("RELAY_BATCH_SIZE", "many"), []string{`RELAY_BATCH_SIZE="many": must be a whole number`}},
		{"a number out of range", valid.with("RELAY_WORKERS", "0"), []string{"RELAY_WORKERS=0: allowed are 1 to 64"}},
		{"a number beyond all ranges", valid.with("RELAY_WORKERS", "99999999999999999999"), []string{`RELAY_WORKERS="99999999999999999999": must be a whole number`}},
		{"no fraction", valid.with("RELAY_BELL_RATE", "fast"), []string{`RELAY_BELL_RATE="fast": must be a number`}},
		{"a duration without unit", valid.with("RELAY_POLL_INTERVAL", "500"), []string{`RELAY_POLL_INTERVAL="500": must be a duration such as`}},
		{"no boolean", valid.with("RELAY_ASYNC_MARK", "perhaps"), []string{`RELAY_ASYNC_MARK="perhaps": allowed are true, false`}},
		{"an unknown mode", valid.with("RELAY_NOTIFY", "loud"), []string{`RELAY_NOTIFY="loud": allowed are adaptive, always, off`}},
		{"an unknown order", valid.with("RELAY_ORDER", "random"), []string{`RELAY_ORDER="random": allowed are key, none`}},
		{"an unknown compression", valid.with("KAFKA_COMPRESSION", "rar"), []string{`KAFKA_COMPRESSION="rar": allowed are none, gzip`}},
		{"an unknown level", valid.with("RELAY_LOG_LEVEL", "loud"), []string{`RELAY_LOG_LEVEL="loud": allowed are debug, info, warn, error`}},
		{"an unknown format", valid.with("RELAY_LOG_FORMAT", "xml"), []string{`RELAY_LOG_FORMAT="xml": allowed are text, json`}},
		{"an address without port", valid.with("RELAY_HTTP_ADDR", "localhost"), []string{`RELAY_HTTP_ADDR="localhost": allowed are host:port`}},
		{"a port beyond all ports", valid.with("RELAY_HTTP_ADDR", ":99999"), []string{`RELAY_HTTP_ADDR=":99999": allowed are host:port`}},
		{"a start without patience", valid.with("RELAY_STARTUP_TIMEOUT", "0s"), []string{"RELAY_STARTUP_TIMEOUT=0s: allowed are 100ms to 1h"}},
		{"a table name that is none", valid.with("RELAY_TABLE", "a.b.c"), []string{`RELAY_TABLE="a.b.c"`}},
		{"a URL that is none", valid.with("DATABASE_URL", "postgres://relay:"+secret+"@local host/shop"), []string{"DATABASE_URL is not a Postgres URL"}},
		{"a URL in the wrong variable", valid.with("RELAY_TABLE", valid["DATABASE_URL"]), []string{"RELAY_TABLE="}},
		{"all faults at once", valid.with("RELAY_BATCH_SIZE", "many").with("RELAY_ORDER", "random").with("RELAY_HTTP_ADDR", "x").with("RELAY_BATCHMAX", "5"), []string{
			`RELAY_BATCH_SIZE="many"`, `RELAY_ORDER="random"`, `RELAY_HTTP_ADDR="x"`, "RELAY_BATCHMAX is no setting",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, args := range [][]string{{"run"}, {}, {"check"}} {
				got := relayCommand(t, tt.env, args...)
				got.wants(t, exitUsage, append(tt.want, "wrong settings", "relay run --help")...)
				if lines := strings.Count(got.stderr, "\n  - "); lines != len(tt.want) {
					t.Errorf("%d faults, want %d:\n%s", lines, len(tt.want), got.stderr)
				}
				if strings.Contains(got.stdout+got.stderr, secret) {
					t.Errorf("the password is in the output:\n%s", got.stderr)
				}
			}
		})
	}
}

func TestSettingsDefaults(t *testing.T) {
	t.Parallel()
	s, err := loadSettings(valid.with("RELAY_HTTP_ADDR", "").with("RELAY_LOG_LEVEL", ""))
	if err != nil {
		t.Fatal(err)
	}
	if s.HTTPAddr != "127.0.0.1:8080" || s.LogLevel != slog.LevelInfo || s.StartupTimeout != 30*time.Second || s.BatchSize != 50 {
		t.Errorf("got %q, %v, %v, %d", s.HTTPAddr, s.LogLevel, s.StartupTimeout, s.BatchSize)
	}
}

func TestSettingsListsMayHoldSpaces(t *testing.T) {
	t.Parallel()
	s, err := loadSettings(valid.with("KAFKA_BROKERS", "a:1, b:2 ,").with("RELAY_REQUIRE_TOPICS", "shop.order, shop.cart"))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(s.Brokers, []string{"a:1", "b:2"}) || !slices.Equal(s.RequireTopics, []string{"shop.order", "shop.cart"}) {
		t.Errorf("got brokers %q, topics %q", s.Brokers, s.RequireTopics)
	}
}

func TestUnknownVariables(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, want string }{
		{"RELAY_BATCHSIZE", "RELAY_BATCHSIZE is no setting; did you mean RELAY_BATCH_SIZE?"},
		{"RELAY_BATCH_SIZ", "did you mean RELAY_BATCH_SIZE?"},
		{"RELAY_TABEL", "did you mean RELAY_TABLE?"},
		{"RELAY_HTTP_ADDRESS", "did you mean RELAY_HTTP_ADDR?"},
		{"RELAY_SERVICES", "RELAY_SERVICES is no setting; unset it"},
		{"RELAY_", "RELAY_ is no setting; unset it"},
		{"RELAY_SERVICE_HOST", ""},
		{"RELAY_SERVICE_PORT_HTTP", ""},
		{"RELAY_PORT", ""},
		{"RELAY_PORT_8080_TCP_ADDR", ""},
		{"RELAYED", ""},
		{"RELAY_WORKERS", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, err := range unknownVariables(map[string]string{tt.name: "1"}) {
				got = append(got, err.Error())
			}
			if tt.want == "" && len(got) > 0 || tt.want != "" && (len(got) != 1 || !strings.Contains(got[0], tt.want)) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestMigrateNeedsOnlyDatabaseAndTable(t *testing.T) {
	t.Parallel()
	env := variables{"DATABASE_URL": valid["DATABASE_URL"], "RELAY_TABLE": "shop.events", "RELAY_WORKERS": "none"}
	s, table, err := loadDatabaseSettings(env)
	if err != nil {
		t.Fatalf("a setting that migrating does not need stopped it: %v", err)
	}
	if table.String() != "shop.events" || s.DatabaseURL != valid["DATABASE_URL"] {
		t.Errorf("got table %s", table)
	}
	relayCommand(t, variables{}, "migrate").wants(t, exitUsage, "DATABASE_URL is required")
	// A typo could make it migrate the wrong table.
	relayCommand(t, env.with("RELAY_TABEL", "x"), "migrate").wants(t, exitUsage, "did you mean RELAY_TABLE?")
}

func TestHelpListsEverySettingWithItsDefault(t *testing.T) {
	t.Parallel()
	got := relayCommand(t, variables{}, "run", "--help")
	got.wants(t, exitOK)
	names := settingNames()
	if len(names) < 20 {
		t.Fatalf("only %d settings: %q", len(names), names)
	}
	for _, name := range append(names, "RELAY_POLL_INTERVAL (default 500ms)", "RELAY_HTTP_ADDR (default 127.0.0.1:8080)") {
		if !strings.Contains(got.stdout, "\n  "+name) {
			t.Errorf("help lacks %s", name)
		}
	}
	for line := range strings.Lines(got.stdout) {
		if len(line) > 81 {
			t.Errorf("line of %d characters: %s", len(line), line)
		}
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[settings]()) {
		if variableOf(field) != "" && field.Tag.Get("doc") == "" {
			t.Errorf("%s has no doc", variableOf(field))
		}
	}
}

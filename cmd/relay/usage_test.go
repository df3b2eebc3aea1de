package main

import (
	"strings"
	"testing"
)

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"an unknown command", []string{"rum"}, 2, `unknown command "rum" for "relay"`},
		{"an unknown command comes with the one that was meant", []string{"migrte"}, 2, "migrate"},
		{"an unknown flag", []string{"--workers=3"}, 2, "unknown flag: --workers"},
		{"an unknown flag of a command", []string{"demo", "--speed=3"}, 2, "unknown flag: --speed"},
		{"a flag's value that is none", []string{"demo", "--duration=long"}, 2, "--duration"},
		{"an argument too much", []string{"run", "fast"}, 2, `unknown command "fast" for "relay run"`},
		{"an argument too much for check", []string{"check", "all"}, 2, `unknown command "all"`},
		{"a rate out of range", []string{"demo", "--rate=0"}, 2, "--rate=0: allowed are"},
		{"a duration out of range", []string{"demo", "--duration=1ms"}, 2, "--duration=1ms: allowed are"},
		{"an address that is none, named as the flag", []string{"demo", "--http=here"}, 2, `--http="here": allowed are host:port`},
		{"a database URL that is none, named as the flag", []string{"demo", "--database-url=postgres://a:" + secret + "@b c"}, 2, "--database-url is not a Postgres URL"},
		{"help", []string{"--help"}, 0, "relay [command]"},
		{"help of a command", []string{"help", "demo"}, 0, "--database-url"},
		{"the version", []string{"version"}, 0, "outbox-relay "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := relayCommand(t, variables{}, tt.args...)
			got.wants(t, tt.code, tt.want)
			if tt.code == 0 && got.stderr != "" || tt.code != 0 && got.stdout != "" {
				t.Errorf("results belong to stdout and faults to stderr; stdout %q, stderr %q", got.stdout, got.stderr)
			}
			if strings.Contains(got.stderr, secret) {
				t.Errorf("the password is in the output: %s", got.stderr)
			}
		})
	}
}

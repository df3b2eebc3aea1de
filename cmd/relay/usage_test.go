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
		{"parked without saying what", []string{"parked"}, 2, "list, show, requeue or discard"},
		{"an unknown command of parked", []string{"parked", "lst"}, 2, `unknown command "lst" for "relay parked"`},
		{"a state that is none", []string{"parked", "list", "--state=open,parked"}, 2, `--state="open": allowed are waiting, parked`},
		{"an age and a limit below zero", []string{"parked", "list", "--older-than=-1h", "--limit=-1"}, 2, "--limit=-1: allowed are numbers from 0"},
		{"IDs that are none", []string{"parked", "requeue", "--yes", "7", "abc", "1-2"}, 2, `ID "abc" is neither a row id`},
		{"show without an ID", []string{"parked", "show"}, 2, "accepts 1 arg"},
		{"requeue without IDs", []string{"parked", "requeue"}, 2, "requeue needs IDs, or --all"},
		{"requeue with both", []string{"parked", "requeue", "--all", "7"}, 2, "IDs or --all, not both"},
		{"requeue by a filter alone", []string{"parked", "requeue", "--topic=a"}, 2, `requeue needs IDs, or --all`},
		{"requeue of IDs with a filter", []string{"parked", "requeue", "7", "--topic=a"}, 2, "narrow --all"},
		{"requeue of many without a terminal", []string{"parked", "requeue", "7", "8"}, 2, "add --yes"},
		{"requeue of all without a terminal", []string{"parked", "requeue", "--all"}, 2, "add --yes"},
		{"discard without IDs", []string{"parked", "discard", "--reason=x"}, 2, "discard needs IDs"},
		{"discard without a reason", []string{"parked", "discard", "7"}, 2, "needs a --reason"},
		{"discard with an empty reason", []string{"parked", "discard", "7", "--reason= "}, 2, "needs a --reason"},
		{"discard of many without a terminal", []string{"parked", "discard", "7", "8", "--reason=x"}, 2, "add --yes"},
		{"parked without a database", []string{"parked", "list"}, 2, "DATABASE_URL is required"},
		{"replay without flags", []string{"replay"}, 2, "--topic is required"},
		{"replay with a time that is none", []string{"replay", "--topic=a", "--from=today", "--to=2026-01-31T15:04:05Z"}, 2, `--from="today": required is a time`},
		{"replay back in time", []string{"replay", "--topic=a", "--from=2026-01-31T15:04:05Z", "--to=2026-01-31T15:04:05Z"}, 2, "is not before --to"},
		{"replay at no rate", []string{"replay", "--topic=a", "--from=2026-01-31T15:04:05Z", "--to=2026-02-01T00:00:00Z", "--rate=0/s"}, 2, `--rate="0/s": allowed are`},
		{"replay without a terminal", []string{"replay", "--topic=a", "--from=2026-01-31T15:04:05Z", "--to=2026-02-01T00:00:00Z"}, 2, "add --yes"},
		{"help of parked", []string{"parked", "requeue", "--help"}, 0, "--all"},
		{"help of replay", []string{"replay", "--help"}, 0, "x-replayed-at"},
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

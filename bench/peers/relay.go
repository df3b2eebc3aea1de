package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// relayPeer is the binary of this repository with its default settings.
type relayPeer struct{ program }

func newRelay() *relayPeer {
	return &relayPeer{program{
		args: func(s *stage) []string { return []string{relayBinary(s), "run"} },
		env: func(s *stage) []string {
			return append(ownSettings(),
				"DATABASE_URL="+s.databaseURL,
				"KAFKA_BROKERS="+strings.Join(s.brokers, ","),
				"RELAY_HTTP_ADDR=127.0.0.1:0",
			)
		},
	}}
}

func relayBinary(s *stage) string { return filepath.Join(s.dir, "relay") }

// prepare builds the binary. The stage has its trigger already.
func (*relayPeer) prepare(ctx context.Context, s *stage) error {
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", relayBinary(s),
		"github.com/outbox-relay/outbox-relay/cmd/relay")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the relay: %w; run this from inside the repository:\n%s", err, out)
	}
	return nil
}

func (*relayPeer) settings() string {
	own := ownSettings()
	if len(own) == 0 {
		return "The defaults throughout; set were only `DATABASE_URL`, `KAFKA_BROKERS` and `RELAY_HTTP_ADDR`.\n"
	}
	return "The defaults but for `" + strings.Join(own, "`, `") + "`.\n"
}

// ownSettings are those of the relay that the environment names, so that any of
// them can be put to the test. RELAY_LISTEN_URL is none of them: it would lead to
// another database, and its password into the report.
func ownSettings() []string {
	var own []string
	for _, variable := range os.Environ() {
		if strings.HasPrefix(variable, "RELAY_") && !strings.HasPrefix(variable, "RELAY_LISTEN_URL=") {
			own = append(own, variable)
		}
	}
	return own
}

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/outbox-relay/outbox-relay/relay"
)

// settings are all that the binary reads from its environment: the engine's,
// and what concerns the process around it.
type settings struct {
	relay.Config

	StartupTimeout time.Duration `env:"RELAY_STARTUP_TIMEOUT" envDefault:"30s" doc:"how long a start waits for the database and the brokers."`
	RequireTopics  []string      `env:"RELAY_REQUIRE_TOPICS" doc:"comma list of topics; a start fails unless each of them exists."`
	HTTPAddr       string        `env:"RELAY_HTTP_ADDR" envDefault:"127.0.0.1:8080" doc:"host:port of /livez, /readyz and /metrics; off turns them off."`
	LogLevel       slog.Level    `env:"RELAY_LOG_LEVEL" envDefault:"info" doc:"debug, info, warn, error."`
	LogFormat      string        `env:"RELAY_LOG_FORMAT" doc:"text or json. Default: text on a terminal, else json."`
}

// httpOff is the value of RELAY_HTTP_ADDR that turns the server off. An empty
// value cannot say that: many a deployment sets it for a default.
const httpOff = "off"

// Validate reports every setting that is missing or out of range.
func (s *settings) Validate() error {
	faults := split(s.Config.Validate())
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	if s.StartupTimeout < 100*time.Millisecond || s.StartupTimeout > time.Hour {
		fault("RELAY_STARTUP_TIMEOUT=%s: allowed are 100ms to 1h", s.StartupTimeout)
	}
	if s.HTTPAddr != httpOff && !isHostPort(s.HTTPAddr) {
		fault("RELAY_HTTP_ADDR=%q: allowed are host:port, :port for all interfaces, and off", s.HTTPAddr)
	}
	if s.LogFormat != "" && s.LogFormat != logText && s.LogFormat != logJSON {
		fault("RELAY_LOG_FORMAT=%q: allowed are text, json", s.LogFormat)
	}
	return errors.Join(faults...)
}

func isHostPort(addr string) bool {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

// trim drops the spaces and the empty parts of "a, b,".
func trim(list []string) []string {
	var parts []string
	for _, part := range list {
		if part = strings.TrimSpace(part); part != "" {
			parts = append(parts, part)
		}
	}
	return parts
}

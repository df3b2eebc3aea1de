package relay

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestDefaultsAreValidOnceTheServersAreNamed(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	cfg.DatabaseURL, cfg.Brokers = "postgres://localhost/db", []string{"localhost:9092"}
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
}

func TestValidateNamesEveryFault(t *testing.T) {
	t.Parallel()
	const password = "hunter2"
	for want, change := range map[string]func(*Config){
		"DATABASE_URL is required":     func(c *Config) { c.DatabaseURL = "" },
		"DATABASE_URL is not":          func(c *Config) { c.DatabaseURL = "postgres://u:" + password + "@host:notaport/db" },
		"RELAY_LISTEN_URL is not":      func(c *Config) { c.ListenURL = "postgres://u:" + password + "@ho st/db" },
		"RELAY_TABLE=":                 func(c *Config) { c.Table = "a.b.c" },
		"KAFKA_BROKERS is required":    func(c *Config) { c.Brokers = nil },
		"KAFKA_BROKERS is":             func(c *Config) { c.Brokers = []string{"a:1", ""} },
		`RELAY_NOTIFY="loud"`:          func(c *Config) { c.Notify = "loud" },
		`RELAY_ORDER="total"`:          func(c *Config) { c.Order = "total" },
		`KAFKA_COMPRESSION="zip"`:      func(c *Config) { c.Compression = "zip" },
		"need KAFKA_TLS=true":          func(c *Config) { c.TLSCAFile = "ca.pem" },
		"set both or none":             func(c *Config) { c.TLS, c.TLSCertFile = true, "cert.pem" },
		"KAFKA_TLS_CA_FILE: open none": func(c *Config) { c.TLS, c.TLSCAFile = true, "none" },
		"KAFKA_TLS_CERT_FILE, KAFKA_TLS_KEY_FILE: open none": func(c *Config) {
			c.TLS, c.TLSCertFile, c.TLSKeyFile = true, "none", "none"
		},
		`KAFKA_TLS_CA_FILE="config_test.go" holds no certificate`: func(c *Config) {
			c.TLS, c.TLSCAFile = true, "config_test.go"
		},
		`KAFKA_SASL_MECHANISM="GSSAPI": allowed are PLAIN`: func(c *Config) {
			c.SASLMechanism, c.SASLUsername, c.SASLPassword = "GSSAPI", "u", password
		},
		"need KAFKA_SASL_MECHANISM":               func(c *Config) { c.SASLPassword = password },
		"KAFKA_SASL_USERNAME is required":         func(c *Config) { c.SASLMechanism, c.SASLPassword = "PLAIN", password },
		"or KAFKA_SASL_PASSWORD_FILE is required": func(c *Config) { c.SASLMechanism, c.SASLUsername = "PLAIN", "u" },
		"KAFKA_SASL_PASSWORD_FILE: open none":     func(c *Config) { c.SASLMechanism, c.SASLUsername, c.SASLPasswordFile = "PLAIN", "u", "none" },
		"are both set": func(c *Config) {
			c.SASLMechanism, c.SASLUsername, c.SASLPassword, c.SASLPasswordFile = "PLAIN", "u", password, "config_test.go"
		},
		"RELAY_POLL_INTERVAL=1ms":       func(c *Config) { c.PollInterval = time.Millisecond },
		"RELAY_BELL_POLL=0s":            func(c *Config) { c.BellPoll = 0 },
		"RELAY_BELL_RATE=0":             func(c *Config) { c.BellRate = 0 },
		"RELAY_BELL_RATE=NaN":           func(c *Config) { c.BellRate = math.NaN() },
		"without a scheme":              func(c *Config) { c.Brokers = []string{"kafka://a:1"} },
		"RELAY_PUBLISH_TIMEOUT=1ms":     func(c *Config) { c.PublishTimeout = time.Millisecond },
		"RELAY_SHUTDOWN_TIMEOUT=1h0m0s": func(c *Config) { c.ShutdownTimeout = time.Hour },
		"RELAY_RETRY_MIN=0s":            func(c *Config) { c.RetryMin = 0 },
		"RELAY_RETRY_MAX=500ms: allowed are RELAY_RETRY_MIN=1s": func(c *Config) {
			c.RetryMax = 500 * time.Millisecond
		},
		"RELAY_BATCH_SIZE=0": func(c *Config) { c.BatchSize = 0 },
		"RELAY_BATCH_MAX=10: allowed are RELAY_BATCH_SIZE=50": func(c *Config) { c.BatchMax = 10 },
		"RELAY_BATCH_BYTES=1: allowed are 1024":               func(c *Config) { c.BatchBytes = 1 },
		"RELAY_WORKERS=0: allowed are 1":                      func(c *Config) { c.Workers = 0 },
		"RELAY_MAX_ATTEMPTS=-1: allowed are 1 to":             func(c *Config) { c.MaxAttempts = -1 },
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			cfg := DefaultConfig()
			cfg.DatabaseURL, cfg.Brokers = "postgres://localhost/db", []string{"localhost:9092"}
			change(&cfg)
			err := cfg.Validate()
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Fatalf("Validate returned %v, want it to say %q", err, want)
			}
			if strings.Contains(err.Error(), password) {
				t.Errorf("the password is in the message: %v", err)
			}
			if n := strings.Count(err.Error(), "\n"); n > 0 {
				t.Errorf("more than the one fault: %v", err)
			}
		})
	}
}

func TestValidateReportsAllFaultsAtOnce(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	cfg.Workers, cfg.Order = 0, "total"
	err := cfg.Validate()
	if err == nil {
		t.Fatal("valid")
	}
	for _, want := range []string{"DATABASE_URL", "KAFKA_BROKERS", "RELAY_WORKERS", "RELAY_ORDER"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not in %q", want, err)
		}
	}
}

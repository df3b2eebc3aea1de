package relay

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
	"github.com/outbox-relay/outbox-relay/notify"
)

// Order says what the relay keeps in order.
type Order string

const (
	// OrderKey publishes the events of each partition key in the order of
	// their ids, with any number of relays and through any crash.
	OrderKey Order = "key"
	// OrderNone is plain SKIP LOCKED: with more than one worker or relay the
	// events of a key can overtake each other.
	OrderNone Order = "none"
)

// Config holds the engine's settings. The env tag names the variable that the
// binary reads, envDefault its default, doc the line shown by --help. Start
// from DefaultConfig and set DatabaseURL and Brokers; the zero value is not
// usable.
type Config struct {
	DatabaseURL string `env:"DATABASE_URL" doc:"Postgres URL for claims and marks; may go through a pooler in transaction mode. Required."`
	ListenURL   string `env:"RELAY_LISTEN_URL" doc:"direct Postgres URL for LISTEN and the bell. Default: DATABASE_URL."`
	Table       string `env:"RELAY_TABLE" envDefault:"public.outbox_event" doc:"the outbox table, schema-qualified."`

	Notify       notify.Mode   `env:"RELAY_NOTIFY" envDefault:"adaptive" doc:"adaptive: writers notify only while the relay sleeps; always: writers notify on every commit; off: no NOTIFY, poll only."`
	PollInterval time.Duration `env:"RELAY_POLL_INTERVAL" envDefault:"500ms" doc:"the fallback ticker: every row is looked for at least this often."`
	BellRate     float64       `env:"RELAY_BELL_RATE" envDefault:"300" doc:"rows/s above which the relay stays awake and writers stop notifying."`
	BellPoll     time.Duration `env:"RELAY_BELL_POLL" envDefault:"2ms" doc:"pause between claims while awake, unless they come back full."`

	Order      Order `env:"RELAY_ORDER" envDefault:"key" doc:"key: events of a partition key in id order; none: plain SKIP LOCKED."`
	BatchSize  int   `env:"RELAY_BATCH_SIZE" envDefault:"50" doc:"rows claimed at once at rest."`
	BatchMax   int   `env:"RELAY_BATCH_MAX" envDefault:"1000" doc:"rows claimed at once under a backlog."`
	BatchBytes int   `env:"RELAY_BATCH_BYTES" envDefault:"4194304" doc:"payload bytes a batch aims to stay below."`
	Workers    int   `env:"RELAY_WORKERS" envDefault:"2" doc:"concurrent claims; those beyond the first join only under a backlog."`

	PublishTimeout  time.Duration `env:"RELAY_PUBLISH_TIMEOUT" envDefault:"10s" doc:"how long a claim waits for Kafka before its transaction is rolled back."`
	ShutdownTimeout time.Duration `env:"RELAY_SHUTDOWN_TIMEOUT" envDefault:"20s" doc:"how long a stop may take to finish and mark what was handed to Kafka."`
	AsyncMark       bool          `env:"RELAY_ASYNC_MARK" envDefault:"true" doc:"mark with synchronous_commit=off: a database crash can repeat events, never lose one."`

	MaxAttempts int           `env:"RELAY_MAX_ATTEMPTS" envDefault:"5" doc:"tries of a row that Kafka refuses before RELAY_ON_POISON decides about it."`
	RetryMin    time.Duration `env:"RELAY_RETRY_MIN" envDefault:"1s" doc:"first wait of a row or topic that failed; doubles with each failure."`
	RetryMax    time.Duration `env:"RELAY_RETRY_MAX" envDefault:"1m" doc:"longest wait between two tries of a row or topic."`
	OnPoison    Policy        `env:"RELAY_ON_POISON" envDefault:"park" doc:"a row that has used up its tries. park: its key goes on without it; block: its key waits until an operator decides; dlq: it is published to RELAY_DLQ_TOPIC and marked."`
	DLQTopic    string        `env:"RELAY_DLQ_TOPIC" doc:"the dead-letter topic. Required with RELAY_ON_POISON=dlq."`

	CreateTopics     bool `env:"RELAY_CREATE_TOPICS" envDefault:"false" doc:"create a topic that is missing, with the two settings below."`
	TopicPartitions  int  `env:"RELAY_TOPIC_PARTITIONS" envDefault:"0" doc:"partitions of a created topic; 0: the cluster's default."`
	TopicReplication int  `env:"RELAY_TOPIC_REPLICATION" envDefault:"0" doc:"replicas of a created topic; 0: the cluster's default."`

	Brokers     []string `env:"KAFKA_BROKERS" doc:"comma list of host:port. Required."`
	ClientID    string   `env:"KAFKA_CLIENT_ID" envDefault:"outbox-relay" doc:"client id shown to the brokers."`
	Compression string   `env:"KAFKA_COMPRESSION" envDefault:"none" doc:"none, gzip, snappy, lz4, zstd."`

	TLS              bool   `env:"KAFKA_TLS" envDefault:"false" doc:"encrypt the connections to the brokers and verify their certificates."`
	TLSCAFile        string `env:"KAFKA_TLS_CA_FILE" doc:"PEM file of the authorities that may have signed these. Default: those of the system."`
	TLSCertFile      string `env:"KAFKA_TLS_CERT_FILE" doc:"PEM file of the relay's own certificate, for brokers that want one."`
	TLSKeyFile       string `env:"KAFKA_TLS_KEY_FILE" doc:"PEM file of its private key."`
	SASLMechanism    string `env:"KAFKA_SASL_MECHANISM" doc:"PLAIN (only with KAFKA_TLS, or the password travels readable), SCRAM-SHA-256 or SCRAM-SHA-512. Default: no login."`
	SASLUsername     string `env:"KAFKA_SASL_USERNAME" doc:"user to log in as."`
	SASLPassword     string `env:"KAFKA_SASL_PASSWORD" doc:"its password."`
	SASLPasswordFile string `env:"KAFKA_SASL_PASSWORD_FILE" doc:"file that holds the password instead; read anew for each connection, as are those of KAFKA_TLS, so that a rotation needs no restart."`
}

// DefaultConfig returns the documented defaults, whatever the environment
// says. DatabaseURL and Brokers are empty.
func DefaultConfig() Config {
	cfg, err := env.ParseAsWithOptions[Config](env.Options{Environment: map[string]string{}})
	if err != nil {
		panic(fmt.Sprintf("relay: the defaults in Config's tags do not parse: %v", err))
	}
	return cfg
}

// Validate reports every setting that is missing or out of range in one error.
// Messages name the variable, the value and what is allowed, and never contain
// a URL, since URLs carry passwords.
func (c *Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	checkURL := func(name, url string) {
		if _, err := pgxpool.ParseConfig(url); err != nil {
			fault("%s is not a Postgres URL or connection string: %s: expected is postgres://user@host:5432/database, with the user's password after a colon and its special characters percent-encoded", name, redactedParseError(err))
		}
	}
	if c.DatabaseURL == "" {
		fault("DATABASE_URL is required, for example postgres://user@host:5432/database")
	} else {
		checkURL("DATABASE_URL", c.DatabaseURL)
	}
	if c.ListenURL != "" {
		checkURL("RELAY_LISTEN_URL", c.ListenURL)
	}
	if _, err := pgtable.Parse(c.Table); err != nil {
		fault("RELAY_TABLE=%q: %w", c.Table, err)
	}
	if len(c.Brokers) == 0 || slices.Contains(c.Brokers, "") {
		fault("KAFKA_BROKERS is required: a comma list of host:port")
	}
	for _, broker := range c.Brokers {
		if strings.Contains(broker, "/") {
			fault("KAFKA_BROKERS=%q: expected is host:port, without a scheme", broker)
		}
	}

	if !slices.Contains(notify.Modes, c.Notify) {
		fault("RELAY_NOTIFY=%q: allowed are adaptive, always, off", c.Notify)
	}
	if c.Order != OrderKey && c.Order != OrderNone {
		fault("RELAY_ORDER=%q: allowed are key, none", c.Order)
	}
	switch {
	case c.OnPoison != Park && c.OnPoison != Block && c.OnPoison != DeadLetter:
		fault("RELAY_ON_POISON=%q: allowed are park, block, dlq", c.OnPoison)
	case c.OnPoison == DeadLetter && c.DLQTopic == "":
		fault("RELAY_DLQ_TOPIC is required with RELAY_ON_POISON=dlq: the topic that rows which cannot be published go to")
	case c.DLQTopic != "" && !topicNameValid(c.DLQTopic):
		fault("RELAY_DLQ_TOPIC=%q: allowed are 1 to 249 of a-z A-Z 0-9 . _ -", c.DLQTopic)
	case c.OnPoison == Block && c.Order == OrderNone:
		fault("RELAY_ON_POISON=block keeps the order of a key, which RELAY_ORDER=none gives up: allowed with it are park, dlq")
	}
	if _, ok := codecs[c.Compression]; !ok {
		fault("KAFKA_COMPRESSION=%q: allowed are none, gzip, snappy, lz4, zstd", c.Compression)
	}

	faults = append(faults, c.tlsFaults()...)
	faults = append(faults, c.saslFaults()...)

	between := func(name string, v, lo, hi time.Duration) {
		if v < lo || v > hi {
			fault("%s=%s: allowed are %s to %s", name, v, lo, hi)
		}
	}
	between("RELAY_POLL_INTERVAL", c.PollInterval, 10*time.Millisecond, time.Minute)
	between("RELAY_BELL_POLL", c.BellPoll, 100*time.Microsecond, time.Second)
	between("RELAY_PUBLISH_TIMEOUT", c.PublishTimeout, 2*time.Second, 10*time.Minute)
	between("RELAY_SHUTDOWN_TIMEOUT", c.ShutdownTimeout, 100*time.Millisecond, 10*time.Minute)
	between("RELAY_RETRY_MIN", c.RetryMin, 10*time.Millisecond, time.Hour)
	if c.RetryMax < c.RetryMin || c.RetryMax > 24*time.Hour {
		fault("RELAY_RETRY_MAX=%s: allowed are RELAY_RETRY_MIN=%s to 24h", c.RetryMax, c.RetryMin)
	}
	if !(c.BellRate > 0 && c.BellRate <= 1e6) {
		fault("RELAY_BELL_RATE=%v: allowed are above 0 to 1000000 (rows per second)", c.BellRate)
	}

	within := func(name string, v, lo, hi int) {
		if v < lo || v > hi {
			fault("%s=%d: allowed are %d to %d", name, v, lo, hi)
		}
	}
	within("RELAY_BATCH_SIZE", c.BatchSize, 1, 10_000)
	if c.BatchMax < c.BatchSize || c.BatchMax > 10_000 {
		fault("RELAY_BATCH_MAX=%d: allowed are RELAY_BATCH_SIZE=%d to 10000", c.BatchMax, c.BatchSize)
	}
	within("RELAY_BATCH_BYTES", c.BatchBytes, 1024, 1<<30)
	within("RELAY_WORKERS", c.Workers, 1, 64)
	within("RELAY_MAX_ATTEMPTS", c.MaxAttempts, 1, 1000)
	within("RELAY_TOPIC_PARTITIONS", c.TopicPartitions, 0, 10_000)
	within("RELAY_TOPIC_REPLICATION", c.TopicReplication, 0, 100)

	return errors.Join(faults...)
}

// redactedParseError keeps the cause of a URL that does not parse and drops
// the quoted URL: pgx masks a password in a URL that it can take apart, but
// not in one that it cannot.
func redactedParseError(err error) string {
	msg := err.Error()
	if i := strings.LastIndex(msg, "`"); i >= 0 {
		msg = strings.TrimPrefix(msg[i+1:], ": ")
	}
	return msg
}

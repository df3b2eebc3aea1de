package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
	"github.com/outbox-relay/outbox-relay/migrations"
)

// Findings are what Preflight sees. A fault keeps a relay from working at all,
// a warning from working well. Messages say what to do next.
type Findings struct {
	Faults   []error
	Warnings []string
}

func (f *Findings) fault(format string, args ...any) {
	f.Faults = append(f.Faults, fmt.Errorf(format, args...))
}

func (f *Findings) warn(format string, args ...any) {
	f.Warnings = append(f.Warnings, fmt.Sprintf(format, args...))
}

// Preflight looks at the database and at Kafka as a relay with cfg would find
// them, and changes nothing. Both are asked at the same time; a server that
// does not answer is asked again until ctx ends, so give it a deadline.
// requireTopics are topics that must exist.
func Preflight(ctx context.Context, cfg Config, requireTopics []string) Findings {
	if err := cfg.Validate(); err != nil {
		return Findings{Faults: []error{err}}
	}
	kafka := make(chan Findings, 1)
	go func() { kafka <- checkKafka(ctx, &cfg, requireTopics) }()
	found := checkDatabase(ctx, &cfg)
	k := <-kafka
	found.Faults = append(found.Faults, k.Faults...)
	found.Warnings = append(found.Warnings, k.Warnings...)
	return found
}

const retryEvery = 250 * time.Millisecond

func checkDatabase(ctx context.Context, cfg *Config) (f Findings) {
	table, err := pgtable.Parse(cfg.Table)
	if err != nil {
		f.fault("RELAY_TABLE: %w", err)
		return f
	}
	conn, err := connectPatiently(ctx, cfg.DatabaseURL)
	if err != nil {
		f.fault("DATABASE_URL: %w", err)
		return f
	}
	defer closeConn(conn)
	report, err := migrations.Inspect(ctx, conn, table)
	if err != nil {
		f.Faults = append(f.Faults, err)
		return f
	}
	f.judge(report, table)

	if cfg.ListenURL != "" {
		f.checkListener(ctx, cfg.ListenURL, table, report)
	}
	return f
}

func (f *Findings) judge(report migrations.Report, table pgtable.Name) {
	if !report.SchemaExists || !report.Exists {
		f.fault(`table %s does not exist: create it with "relay migrate", or point DATABASE_URL and RELAY_TABLE at it`, table)
		return
	}
	for _, difference := range report.Differences {
		f.fault("table %s: %s", table, difference)
	}
	if len(report.MissingPrivileges) > 0 {
		f.fault("table %s: this role lacks %s: grant it", table, strings.Join(report.MissingPrivileges, ", "))
	}
	if report.IndexMissing {
		f.fault(`table %s: the partial index on (id) WHERE published_at IS NULL is missing or invalid: "relay migrate" builds it without blocking writers`, table)
	}
	if report.RowSecurity {
		f.fault("table %s: row-level security applies to this role, rows that its policies hide would never be published: use a role with BYPASSRLS or a policy that shows all rows", table)
	}
	if report.DoorbellFault != "" {
		f.warn(`table %s: %s: rows are found by polling only, as late as RELAY_POLL_INTERVAL: run "relay migrate"`, table, report.DoorbellFault)
	}
	if report.SequenceCache > 1 {
		f.warn("table %s: the id's sequence has CACHE %d: ids do not follow the order of inserts, so events of one key can be published out of order: ALTER SEQUENCE ... CACHE 1", table, report.SequenceCache)
	}
}

// checkListener makes sure that both URLs lead to the same table: a listener
// elsewhere would hear nothing and hold the bell of another table.
func (f *Findings) checkListener(ctx context.Context, url string, table pgtable.Name, report migrations.Report) {
	conn, err := connectPatiently(ctx, url)
	if err != nil {
		f.fault("RELAY_LISTEN_URL: %w", err)
		return
	}
	defer closeConn(conn)
	other, err := migrations.Inspect(ctx, conn, table)
	if err != nil {
		f.fault("RELAY_LISTEN_URL: %w", err)
		return
	}
	if other.Relid != report.Relid {
		f.fault("RELAY_LISTEN_URL and DATABASE_URL lead to different databases: %s is not the same table there", table)
	}
}

// connectPatiently tries until ctx ends, unless the server answered that this
// user or database will not do. Errors do not carry the URL.
func connectPatiently(ctx context.Context, url string) (*pgx.Conn, error) {
	for {
		attempt, cancel := context.WithTimeout(ctx, pingTimeout)
		conn, err := pgx.Connect(attempt, url)
		cancel()
		if err == nil {
			return conn, nil
		}
		if answer, ok := errors.AsType[*pgconn.PgError](err); ok && !transient(answer.Code) {
			return nil, fmt.Errorf("the database refuses: %s (%s): check user, password and database name", answer.Message, answer.Code)
		}
		if !sleep(ctx, retryEvery) {
			return nil, fmt.Errorf("the database cannot be reached: %w: check host, port and network", oneLineError{err})
		}
	}
}

func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

func checkKafka(ctx context.Context, cfg *Config, requireTopics []string) (f Findings) {
	client, err := kgo.NewClient(clientOptions(cfg)...)
	if err != nil {
		f.fault("KAFKA_BROKERS: %w", err)
		return f
	}
	defer client.Close()
	for {
		attempt, cancel := context.WithTimeout(ctx, pingTimeout)
		err := client.Ping(attempt)
		cancel()
		if err == nil {
			break
		}
		if !sleep(ctx, retryEvery) {
			f.fault("KAFKA_BROKERS: none of %s answers: %w: check addresses and network, and that the listener is a plaintext one",
				strings.Join(cfg.Brokers, ", "), err)
			return f
		}
	}
	if len(requireTopics) == 0 {
		return f
	}
	details, err := kadm.NewClient(client).ListTopics(ctx, requireTopics...)
	if err != nil {
		f.fault("RELAY_REQUIRE_TOPICS: ask Kafka for the topics: %w", err)
		return f
	}
	for _, topic := range requireTopics {
		if err := details[topic].Err; err != nil || !details.Has(topic) {
			f.fault("RELAY_REQUIRE_TOPICS: topic %s is missing or not allowed to this client: create it or correct its name: %w", topic, errOrUnknown(err))
		}
	}
	return f
}

func errOrUnknown(err error) error {
	if err == nil {
		return errors.New("not in Kafka's answer")
	}
	return err
}

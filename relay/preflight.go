package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-relay/outbox-relay/internal/pgerr"
	"github.com/outbox-relay/outbox-relay/internal/pgtable"
	"github.com/outbox-relay/outbox-relay/migrations"
	"github.com/outbox-relay/outbox-relay/notify"
)

// Findings are what Preflight sees. A fault keeps a relay from working at all,
// a warning from working well. Messages say what to do next.
type Findings struct {
	Faults   []error
	Warnings []string
	// OK names what was looked at and found well.
	OK []string
}

func (f *Findings) add(other Findings) {
	f.Faults = append(f.Faults, other.Faults...)
	f.Warnings = append(f.Warnings, other.Warnings...)
	f.OK = append(f.OK, other.OK...)
}

func (f *Findings) ok(format string, args ...any) {
	f.OK = append(f.OK, fmt.Sprintf(format, args...))
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
// requireTopics are topics that must exist. log is told once of each server that
// has to be waited for.
func Preflight(ctx context.Context, cfg Config, requireTopics []string, log *slog.Logger) Findings {
	if err := cfg.Validate(); err != nil {
		return Findings{Faults: []error{err}}
	}
	kafka := make(chan Findings, 1)
	go func() { kafka <- checkKafka(ctx, &cfg, requireTopics, log) }()
	found := checkDatabase(ctx, &cfg, log)
	found.add(<-kafka)
	return found
}

// patiently repeats attempt until it succeeds, its error is final, or ctx ends.
func patiently(ctx context.Context, log *slog.Logger, server string, attempt func(context.Context) (final bool, err error)) error {
	var last error
	for tries := 0; ; tries++ {
		bounded, cancel := context.WithTimeout(ctx, pingTimeout)
		final, err := attempt(bounded)
		cancel()
		if err == nil || final {
			return err
		}
		if last == nil || ctx.Err() == nil { // one that was cut short says less
			last = err
		}
		if tries == 0 {
			log.WarnContext(ctx, "server does not answer yet, it is waited for", "server", server, "error", pgerr.OneLine(err))
		}
		if !sleep(ctx, retryEvery) {
			return last
		}
	}
}

const retryEvery = 250 * time.Millisecond

func checkDatabase(ctx context.Context, cfg *Config, log *slog.Logger) (f Findings) {
	table, err := pgtable.Parse(cfg.Table)
	if err != nil {
		f.fault("RELAY_TABLE: %w", err)
		return f
	}
	conn, report, err := inspectPatiently(ctx, log, cfg.DatabaseURL, table)
	if err != nil {
		f.fault("DATABASE_URL: %w", adviseMode(err, "DATABASE_URL"))
		return f
	}
	defer closeConn(conn)
	f.checkPooler(ctx, conn, cfg.DatabaseURL, cfg.ListenURL)
	f.judge(report, table, cfg.Notify)
	if len(f.Faults)+len(f.Warnings) == 0 {
		f.ok("database: table %s, its index and trigger, the failure table, and the role's rights", table)
	}
	if cfg.ListenURL != "" {
		f.checkListener(ctx, log, conn, cfg.ListenURL, table, report)
	}
	return f
}

func (f *Findings) judge(report migrations.Report, table pgtable.Name, mode notify.Mode) {
	if !report.SchemaExists || !report.Exists {
		f.fault(`table %s does not exist: create it with "relay migrate", or point DATABASE_URL and RELAY_TABLE at it`, table)
		return
	}
	for _, difference := range report.Differences {
		f.fault("table %s: %s", table, difference)
	}
	if len(report.MissingPrivileges) > 0 {
		f.fault("table %s: this role lacks %s: GRANT SELECT, UPDATE (published_at) ON %s TO it, and USAGE on its schema", table, strings.Join(report.MissingPrivileges, ", "), table.Sanitize())
	}
	if report.IndexMissing {
		f.fault(`table %s: the partial index on (id) WHERE published_at IS NULL is missing or invalid: "relay migrate" builds it without blocking writers`, table)
	}
	failures := table.Sibling(migrations.FailureTable)
	if report.FailureTableFault != "" {
		f.fault(`failure table %s: %s: "relay migrate" makes what is missing of it`, failures, report.FailureTableFault)
	}
	if len(report.MissingFailurePrivileges) > 0 {
		f.fault("failure table %s: this role lacks %s: GRANT SELECT, INSERT, UPDATE, DELETE ON %[1]s TO it", failures, strings.Join(report.MissingFailurePrivileges, ", "))
	}
	if report.RowSecurity {
		f.fault("table %s: row-level security applies to this role, rows that its policies hide would never be published: use a role with BYPASSRLS or a policy that shows all rows", table)
	}
	if report.DoorbellFault != "" && mode != notify.Off {
		f.warn(`table %s: %s: rows are found by polling only, as late as RELAY_POLL_INTERVAL: run "relay migrate"`, table, report.DoorbellFault)
	}
	if report.SequenceCache > 1 {
		f.warn("table %s: the id's sequence has CACHE %d: ids do not follow the order of inserts, so events of one key can be published out of order: ALTER SEQUENCE ... CACHE 1", table, report.SequenceCache)
	}
}

// checkListener makes sure that both URLs lead to the same table: a listener
// elsewhere would hear nothing and hold the bell of another table.
func (f *Findings) checkListener(ctx context.Context, log *slog.Logger, pool *pgx.Conn, url string, table pgtable.Name, report migrations.Report) {
	conn, other, err := inspectPatiently(ctx, log, url, table)
	if err != nil {
		f.fault("RELAY_LISTEN_URL: %w", adviseMode(err, "RELAY_LISTEN_URL"))
		return
	}
	defer closeConn(conn)
	if other.Relid != report.Relid {
		f.fault("RELAY_LISTEN_URL and DATABASE_URL lead to different databases: %s is not the same table there", table)
		return
	}
	direct, err := isDirect(ctx, conn)
	if err != nil {
		f.fault("RELAY_LISTEN_URL: look for a pooler: %w", adviseMode(err, "RELAY_LISTEN_URL"))
		return
	}
	before := len(f.Warnings) + len(f.Faults)
	if !direct {
		f.checkHearing(ctx, conn, pool, "RELAY_LISTEN_URL leads through a pooler")
	}
	if len(f.Warnings)+len(f.Faults) == before {
		f.ok("listener: RELAY_LISTEN_URL leads to the same table")
	}
}

// inspectPatiently tries until ctx ends, unless the server answers that this
// user or database will not do, or what is there cannot be inspected. Errors do
// not carry the URL. The caller closes the connection.
func inspectPatiently(ctx context.Context, log *slog.Logger, url string, table pgtable.Name) (conn *pgx.Conn, report migrations.Report, err error) {
	err = patiently(ctx, log, "database", func(ctx context.Context) (final bool, err error) {
		if conn, err = pgx.Connect(ctx, url); err != nil {
			return pgerr.Refused(err), pgerr.Connecting(err)
		}
		if report, err = migrations.Inspect(ctx, conn, table); err == nil {
			return true, nil
		}
		// A session that was ended meanwhile says nothing about the table: a
		// relay that starts while the server restarts must not give up.
		final = !conn.IsClosed()
		closeConn(conn)
		return final, err
	})
	return conn, report, err
}

func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

func checkKafka(ctx context.Context, cfg *Config, requireTopics []string, log *slog.Logger) (f Findings) {
	client, err := kgo.NewClient(clientOptions(cfg)...)
	if err != nil {
		f.fault("KAFKA_BROKERS: %w", err)
		return f
	}
	defer client.Close()
	brokers := strings.Join(cfg.Brokers, ", ")
	err = patiently(ctx, log, "kafka", func(ctx context.Context) (final bool, err error) {
		err = client.Ping(ctx)
		return loginRefused(err), err
	})
	if err != nil {
		f.fault("KAFKA_BROKERS: none of %s answers: %w: %s", brokers, err, cfg.kafkaAdvice(err))
		return f
	}
	f.ok("brokers: %s", brokers)
	if len(requireTopics) == 0 {
		return f
	}
	details, err := kadm.NewClient(client).ListTopics(ctx, requireTopics...)
	if err != nil {
		f.fault("RELAY_REQUIRE_TOPICS: ask Kafka for the topics: %w", err)
		return f
	}
	missing := 0
	for _, topic := range requireTopics {
		if err := details[topic].Err; err != nil || !details.Has(topic) {
			f.fault("RELAY_REQUIRE_TOPICS: topic %s is missing or not allowed to this client: create it or correct its name: %w", topic, errOrUnknown(err))
			missing++
		}
	}
	if missing == 0 {
		f.ok("topics: %s", strings.Join(requireTopics, ", "))
	}
	return f
}

func errOrUnknown(err error) error {
	if err == nil {
		return errors.New("not in Kafka's answer")
	}
	return err
}

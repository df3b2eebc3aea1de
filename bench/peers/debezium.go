package main

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/java"
	"github.com/outbox-relay/outbox-relay/internal/keeper"
)

const (
	debeziumVersion = "3.6.1.Final"
	connectVersion  = "4.3.1"
	debeziumSlot    = "peers_debezium"
	debeziumTimeout = 2 * time.Minute
)

var (
	//go:embed pom.xml
	debeziumPOM []byte
	//go:embed worker.properties
	workerProperties string
	//go:embed connector.properties
	connectorProperties string
)

// debezium is Kafka Connect in its standalone mode with Debezium's connector for
// Postgres and its outbox event router.
type debezium struct {
	poll time.Duration
	jvm  []string
	*process
	rest string
	db   *stage
}

func newDebezium(poll time.Duration) func(config) peer {
	return func(cfg config) peer { return &debezium{poll: poll, jvm: cfg.JVM} }
}

// prepare makes the publication, since the one that the connector makes would
// send updates and deletes as well.
func (d *debezium) prepare(ctx context.Context, s *stage) error {
	if err := s.dropTrigger(ctx); err != nil {
		return err
	}
	return s.exec(ctx, "CREATE PUBLICATION "+debeziumSlot+" FOR TABLE public.outbox_event WITH (publish = 'insert')")
}

// start returns once the slot streams: it misses what is written before.
func (d *debezium) start(ctx context.Context, s *stage) error {
	d.db = s
	program, err := java.Find(ctx)
	if err != nil {
		return err
	}
	jars, err := java.Jars(ctx, "", "debezium-"+debeziumVersion+"-connect-"+connectVersion, debeziumPOM)
	if err != nil {
		return err
	}
	port, err := keeper.FreePort()
	if err != nil {
		return err
	}
	d.rest = fmt.Sprintf("http://127.0.0.1:%d", port)
	connector, err := d.connector(s.databaseURL)
	if err != nil {
		return err
	}
	files := map[string]string{
		"worker.properties":    d.worker(s),
		"connector.properties": connector,
		"log4j2.properties":    string(java.LogProperties),
	}
	for name, content := range files {
		// The connector's holds the password.
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(content), 0o600); err != nil {
			return fmt.Errorf("write settings of Debezium: %w", err)
		}
	}
	args := append([]string{program}, d.jvm...)
	args = append(args,
		"-Dlog4j2.configurationFile="+filepath.Join(s.dir, "log4j2.properties"),
		"-XX:-UsePerfData", "-Djava.io.tmpdir="+s.dir,
		"-cp", filepath.Join(jars, "*"),
		"org.apache.kafka.connect.cli.ConnectStandalone", "worker.properties", "connector.properties")
	d.process, err = startProcess(ctx, Command{Args: args, Env: os.Environ(), Dir: s.dir, Log: s.log})
	if err != nil {
		return err
	}
	ctx, cancel := d.watch(ctx)
	defer cancel()
	return d.awaitSlot(ctx, true)
}

func (d *debezium) worker(s *stage) string {
	return workerProperties + fmt.Sprintf("bootstrap.servers=%s\nlisteners=%s\noffset.storage.file.filename=%s\n",
		strings.Join(s.brokers, ","), d.rest, filepath.Join(s.dir, "offsets"))
}

func (d *debezium) connector(databaseURL string) (string, error) {
	c, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return "", fmt.Errorf("read the database URL for Debezium: %w", err)
	}
	return connectorProperties + d.pollSetting() + fmt.Sprintf(
		"database.hostname=%s\ndatabase.port=%d\ndatabase.user=%s\ndatabase.password=%s\ndatabase.dbname=%s\n",
		c.Host, c.Port, c.User, c.Password, c.Database), nil
}

func (d *debezium) pollSetting() string {
	return fmt.Sprintf("poll.interval.ms=%d\n", d.poll.Milliseconds())
}

// pause stops the connector and not its JVM, which would be cold afterwards.
func (d *debezium) pause(ctx context.Context) error {
	if err := d.put(ctx, "stop"); err != nil {
		return err
	}
	return d.awaitSlot(ctx, false)
}

func (d *debezium) resume(ctx context.Context, _ *stage) error { return d.put(ctx, "resume") }

func (d *debezium) put(ctx context.Context, action string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, d.rest+"/connectors/outbox/"+action, nil)
	if err != nil {
		return err
	}
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("ask Debezium to %s: %w", action, err)
	}
	defer reply.Body.Close()
	if reply.StatusCode >= http.StatusBadRequest {
		text, _ := io.ReadAll(reply.Body) // for the message only
		return fmt.Errorf("ask Debezium to %s: %s: %s", action, reply.Status, text)
	}
	return nil
}

// awaitSlot returns once the replication slot is in use, or is not.
func (d *debezium) awaitSlot(ctx context.Context, active bool) error {
	const statement = "SELECT count(*) = 1 FROM pg_replication_slots WHERE slot_name = $1 AND active"
	return await(ctx, debeziumTimeout, fmt.Sprintf("Debezium's slot to have active = %t", active), func() (bool, error) {
		var is bool
		err := d.db.pool.QueryRow(ctx, statement, debeziumSlot).Scan(&is)
		return is == active, err
	})
}

// cleanUp drops the slot, which outlives the connector and keeps the database
// from being dropped.
func (d *debezium) cleanUp(ctx context.Context, s *stage) error {
	if d.db == nil {
		return nil // never started
	}
	if err := d.awaitSlot(ctx, false); err != nil {
		return err
	}
	return s.exec(ctx, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '"+debeziumSlot+"'")
}

func (d *debezium) settings() string {
	return fmt.Sprintf("Debezium %s on Kafka Connect %s, standalone, `java %s`. The worker:\n\n```properties\n%s```\n\nThe connector, with `poll.interval.ms` as named:\n\n```properties\n%s```\n",
		debeziumVersion, connectVersion, strings.Join(d.jvm, " "), workerProperties, connectorProperties)
}

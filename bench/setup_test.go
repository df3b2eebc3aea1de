package bench

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caarlos0/env/v11"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-relay/outbox-relay/internal/load"
	"github.com/outbox-relay/outbox-relay/internal/pgtable"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
	"github.com/outbox-relay/outbox-relay/migrations"
	"github.com/outbox-relay/outbox-relay/relay"
)

const (
	partitions = 6

	// settleTimeout is how long nothing may happen before what is missing
	// counts as lost.
	settleTimeout = time.Minute
)

func TestMain(m *testing.M) { testenv.Main(m) }

// outbox is a table with a topic that its events go to.
type outbox struct {
	pool  *pgxpool.Pool // for the benchmark's own statements
	table pgtable.Name
	topic string
	cfg   relay.Config
}

// newOutbox makes a database with the outbox table and its trigger, and a topic.
// All of it is gone after the benchmark.
func newOutbox(b *testing.B) *outbox {
	b.Helper()
	return newOutboxOn(b, testenv.Brokers(b))
}

// newOutboxOn is newOutbox with a Kafka of the benchmark's own.
func newOutboxOn(b *testing.B, brokers []string) *outbox {
	b.Helper()
	cfg, err := env.ParseAs[relay.Config]()
	if err != nil {
		b.Fatalf("settings of the relay: %v", err)
	}
	cfg.DatabaseURL = testenv.Database(b)
	cfg.ListenURL = ""
	cfg.Brokers = brokers
	o := &outbox{pool: testenv.Pool(b, cfg.DatabaseURL), cfg: cfg}
	o.use(b, "outbox_event")
	if _, err := migrations.Up(b.Context(), cfg.DatabaseURL, o.table, migrations.Options{}); err != nil {
		b.Fatal(err)
	}
	return o
}

// withoutTrigger makes an equal table in the same database, but for the trigger.
func (o *outbox) withoutTrigger(b *testing.B) *outbox {
	b.Helper()
	plain := *o
	plain.use(b, "outbox_plain")
	testenv.OutboxTable(b, o.cfg.DatabaseURL, plain.table.Schema, plain.table.Table)
	return &plain
}

func (o *outbox) use(b *testing.B, table string) {
	b.Helper()
	o.table = pgtable.Name{Schema: pgtable.DefaultSchema, Table: table}
	o.cfg.Table = o.table.String()
	o.topic = testenv.Topic(b, o.cfg.Brokers, partitions)
}

// relay starts a relay. It runs until stop is called or the benchmark ends, and
// fails the benchmark if it does not stop in order.
func (o *outbox) relay(b *testing.B, change func(*relay.Config), options ...relay.Option) (r *relay.Relay, stop func()) {
	b.Helper()
	cfg := o.cfg
	change(&cfg)
	// Warnings explain a strange figure; what is normal would only litter the
	// results.
	log := slog.New(slog.NewTextHandler(b.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	r, err := relay.New(cfg, append(options, relay.WithLogger(log))...)
	if err != nil {
		b.Fatal(err)
	}
	// Not the benchmark's own context: that ends before its cleanup, and a
	// relay that stops by itself would not be noticed.
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	var group errgroup.Group
	group.Go(func() error { return r.Run(ctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		if err := group.Wait(); err != nil {
			b.Errorf("stop the relay: %v", err)
		}
	})
	b.Cleanup(stop)
	return r, stop
}

// awaitReady returns once the relay has reached both servers and listens.
func awaitReady(b *testing.B, r *relay.Relay) {
	b.Helper()
	testenv.Eventually(b, "the relay is ready and listens", func() bool {
		health := r.Health()
		return health.Ready() && health.ListenerUp
	})
}

// awaitMarked returns once every row of the table is marked.
func (o *outbox) awaitMarked(b *testing.B) {
	b.Helper()
	// The order keeps it on the partial index, where it costs next to nothing.
	statement := "SELECT id FROM " + o.table.Sanitize() + " WHERE published_at IS NULL ORDER BY id LIMIT 1"
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	var first int64
	moved := time.Now()
	for {
		var id int64
		err := o.pool.QueryRow(b.Context(), statement).Scan(&id)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return
		case err != nil:
			b.Fatalf("wait until all rows of %s are marked: %v", o.table, err)
		case id != first:
			first, moved = id, time.Now()
		case time.Since(moved) > settleTimeout:
			b.Fatalf("the relay stands still: row %d of %s has been the first unpublished one for %s", id, o.table, settleTimeout)
		}
		<-poll.C
	}
}

// check fails the benchmark unless each event is there once and in order.
func check(b *testing.B, report load.Report) {
	b.Helper()
	if report.Lost+report.Duplicates+report.OutOfOrder+report.Unknown > 0 {
		b.Errorf("of %d committed events %d were lost, %d repeated, %d out of order; %d records are of no event",
			report.Committed, report.Lost, report.Duplicates, report.OutOfOrder, report.Unknown)
	}
}

// setting reads a whole number above 0 from the environment.
func setting(b *testing.B, name string, fallback int) int {
	b.Helper()
	text := os.Getenv(name)
	if text == "" {
		return fallback
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		b.Fatalf("%s=%q: allowed are whole numbers above 0", name, text)
	}
	return n
}

// list reads a comma list of whole numbers above 0 from the environment.
func list(b *testing.B, name, fallback string) []int {
	b.Helper()
	text := cmp.Or(os.Getenv(name), fallback)
	var numbers []int
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 {
			b.Fatalf("%s=%q: allowed are whole numbers above 0, with commas between them", name, text)
		}
		numbers = append(numbers, n)
	}
	return numbers
}

func payloadBytes(b *testing.B) int { return setting(b, "BENCH_PAYLOAD_BYTES", 128) }

func passLength(b *testing.B) time.Duration {
	return time.Duration(setting(b, "BENCH_SECONDS", 5)) * time.Second
}

// report reports a result, and drops the time an iteration took: it says how
// long the benchmark was told to run.
func report(b *testing.B, value float64, unit string) {
	b.ReportMetric(value, unit)
	b.ReportMetric(0, "ns/op")
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

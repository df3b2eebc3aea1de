package bench

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/load"
	"github.com/outbox-relay/outbox-relay/notify"
)

// burstSize is how many rows a burst has. One comes every second.
const burstSize = 500

// BenchmarkAdaptive measures what each mode of the doorbell costs and gains at a
// load, with the relay in a process of its own. BENCH_LOADS lists the loads:
//
//   - a number: so many single-row commits a second, evenly.
//   - burst: 500 single-row commits at once, every second.
//   - idle: none.
//   - held: none, while a writer's transaction stays open, so that the bell
//     cannot be taken.
//
// p50-ms and p99-ms run from just before the INSERT to the consumer.
// relay-cpu-% and postgres-cpu-% are of one core; Postgres includes what the
// writers cause. They are left out where /proc does not show them.
// relay-transactions/s is all that the relay did in the database from its start to
// its end, with the some twenty of start and end. Each is one or two round trips,
// and none where a listening session reads a notification, which Postgres counts
// as well: an event that wakes a relay at rest is three.
//
// The same as a table, in Markdown, stands below the results. RELAY_BELL_RATE and
// RELAY_BELL_POLL change the rule of the mode adaptive.
func BenchmarkAdaptive(b *testing.B) {
	binary := buildRelay(b)
	var table strings.Builder
	table.WriteString("| load | RELAY_NOTIFY | p50 ms | p99 ms | relay's transactions/s | relay's CPU % | Postgres' CPU % |\n|---|---|---|---|---|---|---|\n")
	for name := range strings.SplitSeq(cmp.Or(os.Getenv("BENCH_LOADS"), "200"), ",") {
		l := parseLoad(b, name)
		for _, mode := range notify.Modes {
			b.Run(fmt.Sprintf("load=%s/notify=%s", l.name, mode), func(b *testing.B) {
				m := measureAdaptive(b, binary, l, mode)
				m.report(b)
				fmt.Fprintf(&table, "| %s | %s | %s |\n", l.name, mode, m)
			})
		}
	}
	fmt.Printf("\n%s\n", &table) // what a benchmark with parts logs is never shown
}

// pattern is how events come.
type pattern struct {
	name        string
	rate, burst int
	held        bool
}

func parseLoad(b *testing.B, name string) pattern {
	b.Helper()
	switch name {
	case "burst":
		return pattern{name: name, rate: burstSize, burst: burstSize}
	case "idle", "held":
		return pattern{name: name, held: name == "held"}
	}
	rate, err := strconv.Atoi(name)
	if err != nil || rate < 1 {
		b.Fatalf("BENCH_LOADS: %q is none of: a number above 0, burst, idle, held", name)
	}
	return pattern{name: name, rate: rate}
}

// adaptiveResult is a line of the table. Percentages that could not be measured
// are negative.
type adaptiveResult struct {
	events        bool // false if there were none to measure a latency of
	p50, p99      time.Duration
	transactions  float64
	relay, server float64
}

func (m adaptiveResult) report(b *testing.B) {
	b.Helper()
	if m.events {
		report(b, milliseconds(m.p50), "p50-ms")
		report(b, milliseconds(m.p99), "p99-ms")
	}
	report(b, m.transactions, "relay-transactions/s")
	if m.relay >= 0 {
		report(b, m.relay, "relay-cpu-%")
	}
	if m.server >= 0 {
		report(b, m.server, "postgres-cpu-%")
	}
}

// String returns the cells of the table.
func (m adaptiveResult) String() string {
	cell := func(value float64, known bool) string {
		if !known {
			return "-"
		}
		return strconv.FormatFloat(value, 'f', 1, 64)
	}
	return strings.Join([]string{
		cell(milliseconds(m.p50), m.events), cell(milliseconds(m.p99), m.events),
		cell(m.transactions, true), cell(m.relay, m.relay >= 0), cell(m.server, m.server >= 0),
	}, " | ")
}

func measureAdaptive(b *testing.B, binary string, l pattern, mode notify.Mode) adaptiveResult {
	f := newOutbox(b).startFlow(b, load.NewLedger(), nil)
	server := f.postmaster(b)
	if l.held {
		f.holdOpen(b)
	}
	transactions := f.transactions(b)
	began := time.Now()
	relay := f.process(b, binary, "RELAY_NOTIFY="+string(mode))

	cpu := newCPUMeter(relay.cmd.Process.Pid, server)
	written, warmup := f.apply(b, l, cpu.start)
	m := adaptiveResult{events: written > 0}
	shares := cpu.stop()
	m.relay, m.server = shares[0], shares[1]

	f.arrive(b)
	relay.stop() // its sessions tell the statistics everything at their end
	took := time.Since(began)
	m.transactions = float64(f.transactions(b)-transactions-written) / took.Seconds()

	found := f.catchUp(b)
	check(b, found)
	percentiles := load.Percentiles(found.FromInsert[min(warmup, len(found.FromInsert)):], 50, 99)
	m.p50, m.p99 = percentiles[0], percentiles[1]
	return m
}

// apply carries out the load, calls warm once its first part is over, and
// returns how many transactions there were and how many of them before that.
func (f *flow) apply(b *testing.B, l pattern, warm func()) (written int64, warmup int) {
	b.Helper()
	seconds := b.N * setting(b, "BENCH_SECONDS", 1)
	if l.rate == 0 {
		warm()
		<-time.After(time.Duration(seconds) * time.Second)
		return 0, 0
	}
	// A second, and an event for each connection at least: the first on a
	// connection prepares its statement.
	writer := f.writer(b, l.rate, 0)
	warmup = max(l.rate, 2*writer.Conns)
	writer.Count, writer.Burst = warmup+seconds*l.rate, l.burst
	insert, sent, warmed := writer.Insert, atomic.Int64{}, make(chan struct{})
	writer.Insert = func(ctx context.Context, conn *pgx.Conn, event load.Event) error {
		if sent.Add(1) == int64(warmup)+1 {
			close(warmed)
		}
		return insert(ctx, conn, event)
	}
	var watcher sync.WaitGroup
	watcher.Go(func() {
		<-warmed
		warm()
	})
	f.write(b, writer)
	watcher.Wait()
	return int64(writer.Count), warmup
}

// holdOpen leaves a writer's transaction open that began while the bell was
// free.
func (o *outbox) holdOpen(b *testing.B) {
	b.Helper()
	conn, err := pgx.Connect(b.Context(), o.cfg.DatabaseURL)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close(context.Background()) }) // and with it the transaction
	id, err := uuid.NewV7()
	if err != nil {
		b.Fatal(err)
	}
	event := load.Event{ID: id, Key: "open", Topic: o.topic}
	batch := &pgx.Batch{}
	batch.Queue("BEGIN")
	batch.Queue(load.OutboxStatement(o.table), event.Row("load", event.Key, "load.sent", event.Payload())...)
	if err := conn.SendBatch(b.Context(), batch).Close(); err != nil {
		b.Fatalf("leave a writer's transaction open: %v", err)
	}
}

// transactions is how many this database has seen, committed or not. A session
// adds its own at its end, or a second later at the earliest.
func (o *outbox) transactions(b *testing.B) int64 {
	b.Helper()
	var n int64
	const statement = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
	if err := o.pool.QueryRow(b.Context(), statement).Scan(&n); err != nil {
		b.Fatalf("count transactions: %v", err)
	}
	return n
}

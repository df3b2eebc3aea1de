package relay

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/faultproxy"
	"github.com/outbox-relay/outbox-relay/internal/load"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// foundWithin is wide: deafness is found within 2 s on a machine that is not
// busy with other tests.
const foundWithin = 10 * time.Second

var (
	// The server ends a session that it hears nothing from after 1.5 s. If its
	// end arrives, that may be noticed before the silence is.
	goneLines = []string{
		"listener connected but notifications do not arrive, polling until they do: " +
			"point RELAY_LISTEN_URL directly at Postgres, not at a pooler in transaction mode",
		"listener lost, polling until it is back",
	}
	backLines = []string{"listening", "listener hears again"}
)

// steady inserts 50 events a second until the returned function is called,
// which returns their ids.
func (f *fixture) steady(t *testing.T, topic string) (stop func() []string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var ids []string
	done := make(chan error, 1)
	go func() {
		pacer := load.NewPacer(50, 0)
		for n := 0; ; n++ {
			if _, ok := pacer.Wait(ctx); !ok {
				done <- nil
				return
			}
			event := testenv.Event{Topic: topic, Key: "k", Payload: testenv.Payload(n + 1)}
			inserted, err := testenv.InsertInto(context.WithoutCancel(ctx), f.pool, pgx.Identifier{"outbox_event"}, event)
			if err != nil {
				done <- err
				return
			}
			ids = append(ids, inserted...)
		}
	}()
	finished := false
	stop = func() []string {
		if !finished {
			finished = true
			cancel()
			if err := <-done; err != nil {
				t.Errorf("insert: %v", err)
			}
		}
		return ids
	}
	t.Cleanup(func() { stop() })
	return stop
}

// latencies are those of the events that were written from one time to another.
func latencies(t *testing.T, deliveries []testenv.Delivery, from, to time.Time) []time.Duration {
	t.Helper()
	var found []time.Duration
	for _, d := range deliveries {
		text, _ := d.Header("x-created-at")
		created, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			t.Fatal(err)
		}
		if created.After(from) && created.Before(to) {
			found = append(found, d.Received.Sub(created))
		}
	}
	slices.Sort(found)
	return found
}

func logLatencies(t *testing.T, what string, l []time.Duration) {
	t.Helper()
	if len(l) > 0 {
		t.Logf("%s: %d events, p50 %s, p99 %s, worst %s", what, len(l), l[len(l)/2], l[len(l)*99/100], l[len(l)-1])
	}
}

// Nothing but the polls of a relay that knows that it is deaf can deliver here:
// the fallback ticker comes once a minute.
func TestAListenerGoneDeafIsFoundAndPolledAround(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]faultproxy.Fault{
		"a network that is cut":              faultproxy.Silent,
		"nothing reaches the relay":          {ToClient: faultproxy.Flow{Hold: true}},
		"nothing reaches the server":         {ToServer: faultproxy.Flow{Hold: true}},
		"what the server sends is swallowed": {ToClient: faultproxy.Flow{Swallow: true}},
		"what the relay sends is swallowed":  {ToServer: faultproxy.Flow{Swallow: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			topic := testenv.Topic(t, f.cfg.Brokers, 1)
			consumer := testenv.Consume(t, f.cfg.Brokers, topic)
			network, through := testenv.Network(t, f.cfg.DatabaseURL)
			r := f.start(t, slowTick, func(c *Config) { c.ListenURL = through })
			testenv.Eventually(t, "asleep", func() bool { return r.Health().BellArmed })
			stop := f.steady(t, topic)
			consumer.WaitFor(t, 20)

			network.Set(fault)
			silent := time.Now()
			testenv.Eventually(t, "the silence is noticed", func() bool { return len(f.log.Entries(goneLines...)) > 0 })
			found := time.Now()
			if took := found.Sub(silent); took > foundWithin {
				t.Errorf("noticed after %s", took)
			}
			if r.Health().ListenerUp {
				t.Error("a deaf listener is shown as up")
			}
			polls := r.metric(t, "outbox_relay_wakes_total", "poll")
			consumer.WaitFor(t, len(consumer.Deliveries())+100)
			if r.metric(t, "outbox_relay_wakes_total", "poll") < polls+10 {
				t.Error("events came by other wakes than polls")
			}
			mended := time.Now()
			network.Set(faultproxy.Fault{})
			testenv.Eventually(t, "asleep again", func() bool { return r.Health().BellArmed && r.Health().ListenerUp })
			healed := time.Since(mended)
			inserted := stop()
			consumer.WaitFor(t, len(inserted))
			consumer.CheckOnce(t, inserted)

			t.Logf("found after %s, heard again %s after it was mended", found.Sub(silent), healed)
			logLatencies(t, "before it was found", latencies(t, consumer.Deliveries(), silent, found))
			logLatencies(t, "deaf", latencies(t, consumer.Deliveries(), found, mended))
			// Once each, whatever is tried underneath.
			if gone, back := len(f.log.Entries(goneLines...)), len(f.log.Entries(backLines...)); gone != 1 || back != 2 {
				t.Errorf("%d lines say that it was gone and %d that it is there; want one, and one after the first at the start", gone, back)
			}
		})
	}
}

// Beside a transaction that is open for hours a walk from the start may take
// longer than the listening connection has for its answer. That is not deafness.
func TestSlowLooksDoNotMakeTheListenerDeaf(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(t, `CREATE SEQUENCE looks`)
	r := f.startWith(t, func(r *Relay) {
		r.sql.look = strings.Replace(r.sql.look, "SELECT ", "SELECT (SELECT nextval('looks') < 0 OR pg_sleep(1.2) IS NULL) OR ", 1)
	})
	testenv.Eventually(t, "a few slow looks", func() bool {
		var looks int
		err := f.pool.QueryRow(t.Context(), `SELECT last_value FROM looks`).Scan(&looks)
		return err == nil && looks >= 5
	})
	if lines := f.log.Entries(goneLines...); len(lines) > 0 {
		t.Errorf("the log says %q", lines[0].Message)
	}
	if !r.Health().ListenerUp {
		t.Error("the listener counts as down")
	}
}

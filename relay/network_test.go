package relay

import (
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/outbox-relay/outbox-relay/internal/faultproxy"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// A firewall that has forgotten all connections, or a server that vanished and
// was replaced: what is open is dead without a sign, what is new works.
func TestConnectionsThatDiedSilentlyAreReplaced(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	network, through := testenv.Network(t, f.cfg.DatabaseURL)
	r := f.start(t, func(c *Config) {
		c.DatabaseURL = through
		c.PublishTimeout = 3 * time.Second
	})
	testenv.Eventually(t, "asleep", func() bool { return r.Health().BellArmed })
	stop := f.steady(t, topic)
	consumer.WaitFor(t, 20)

	network.SetOpen(faultproxy.Silent)
	silent := time.Now()
	consumer.WaitFor(t, len(consumer.Deliveries())+50)
	t.Logf("flows again after %s", time.Since(silent))
	network.Set(faultproxy.Fault{}) // the clients still wait for an answer to their goodbye
	testenv.Eventually(t, "asleep again", func() bool { return r.Health().BellArmed && r.Health().Ready() })
	inserted := stop()
	consumer.WaitFor(t, len(inserted))
	consumer.CheckAtLeastOnce(t, inserted)
	f.waitDrained(t)
}

// The database is away altogether for as long as a hundred events take.
func TestRefusedConnectionsLoseNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	network, through := testenv.Network(t, f.cfg.DatabaseURL)
	r := f.start(t, func(c *Config) { c.DatabaseURL = through })
	testenv.Eventually(t, "asleep", func() bool { return r.Health().BellArmed })
	stop := f.steady(t, topic)
	consumer.WaitFor(t, 20)

	network.Refuse()
	testenv.Eventually(t, "the outage is shown", func() bool { return !r.Health().Ready() && !r.Health().ListenerUp })
	testenv.Eventually(t, "a backlog", func() bool { return f.unpublished(t) > 100 })
	if err := network.Accept(); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	testenv.Eventually(t, "asleep again", func() bool { return r.Health().BellArmed && r.Health().Ready() })
	t.Logf("asleep again after %s", time.Since(back))
	inserted := stop()
	consumer.WaitFor(t, len(inserted))
	consumer.CheckAtLeastOnce(t, inserted)
	f.waitDrained(t)
	for line, want := range map[string]int{
		"server unavailable, nothing is lost and it is tried until it is back": 1,
		"server available again":                  1,
		"listener lost, polling until it is back": 1,
		"listening": 2,
	} {
		if n := len(f.log.Entries(line)); n != want {
			t.Errorf("%d lines %q, want %d", n, line, want)
		}
	}
}

// The primary comes back as a standby, and the name of the server leads to
// another one from then on. Connections to the old one still work and refuse
// every claim: they must not be kept.
func TestADemotedServerIsLeft(t *testing.T) {
	t.Parallel()
	demoted := testenv.Postgres(t)
	f, promoted := newFixtureAt(t, demoted.URL()), newFixtureAt(t, testenv.Postgres(t).URL())
	topic := testenv.Topic(t, f.cfg.Brokers, 1)
	consumer := testenv.Consume(t, f.cfg.Brokers, topic)
	network, through := testenv.Network(t, f.cfg.DatabaseURL)
	r := f.start(t, func(c *Config) { c.DatabaseURL = through })
	inserted := testenv.Insert(t, f.pool, testenv.Sequence(topic, 10, "k")...)
	consumer.WaitFor(t, len(inserted))
	f.waitDrained(t)

	f.exec(t, `DO $$ BEGIN EXECUTE format('COPY (SELECT) TO %L', current_setting('data_directory') || '/standby.signal'); END $$`)
	if err := demoted.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the standby refuses", func() bool { return !r.Health().Ready() && network.Open() > 0 })

	promoted.exec(t, "ALTER ROLE postgres PASSWORD '"+f.pool.Config().ConnConfig.Password+"'")
	address := promoted.pool.Config().ConnConfig
	network.Lead(net.JoinHostPort(address.Host, strconv.Itoa(int(address.Port))))
	inserted = append(inserted, testenv.Insert(t, promoted.pool, testenv.Sequence(topic, 10, "l")...)...)
	consumer.WaitFor(t, len(inserted))
	promoted.waitDrained(t)
	testenv.Eventually(t, "asleep at the other one", func() bool { return r.Health().BellArmed && r.Health().Ready() })
}

package relay

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outbox-relay/outbox-relay/internal/pgcred"
	"github.com/outbox-relay/outbox-relay/internal/pgerr"
	"github.com/outbox-relay/outbox-relay/internal/pgtable"
	"github.com/outbox-relay/outbox-relay/notify"
)

// Relay publishes the rows of one outbox table to Kafka. Build it with New and
// run it once with Run. Any number may run on the same table.
type Relay struct {
	cfg     Config
	table   pgtable.Name
	log     *slog.Logger
	sql     statements
	metrics *metrics

	waits    *waits
	low      *lowWater
	unmarked unmarked
	database *condition
	kafka    *condition

	// Set by Run.
	started   atomic.Bool
	pool      *pgxpool.Pool
	cluster   *cluster
	bell      atomic.Pointer[notify.Doorbell]
	backlog   chan struct{}
	assisting atomic.Int32
	rounds    sync.WaitGroup // of the workers, and of what they left in doubt
	sample    sampler
	refusals  refusalLog
}

// Option changes what a Relay is built with.
type Option func(*options)

type options struct {
	log      *slog.Logger
	registry prometheus.Registerer
}

// WithLogger sets where the relay logs. The default is slog.Default. A change
// of state is logged once, whatever is retried underneath; payloads and
// secrets never are.
func WithLogger(log *slog.Logger) Option { return func(o *options) { o.log = log } }

// WithRegisterer sets where the relay registers its metrics. Without it there
// are none. A registry takes the metrics of one Relay only; wrap it with
// prometheus.WrapRegistererWith to tell several apart.
func WithRegisterer(registry prometheus.Registerer) Option {
	return func(o *options) { o.registry = registry }
}

// New validates cfg and builds a Relay. It connects to nothing. An error lists
// every fault of cfg.
func New(cfg Config, opts ...Option) (*Relay, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	table, err := pgtable.Parse(cfg.Table)
	if err != nil {
		return nil, err
	}
	o := options{log: slog.Default()}
	for _, opt := range opts {
		opt(&o)
	}
	r := &Relay{
		cfg:      cfg,
		table:    table,
		log:      o.log,
		sql:      newStatements(table, &cfg),
		waits:    newWaits(&cfg, o.log),
		low:      newLowWater(),
		database: &condition{name: "database", log: o.log},
		kafka:    &condition{name: "kafka", log: o.log},
		backlog:  make(chan struct{}, cfg.Workers),
	}
	if r.metrics, err = newMetrics(o.registry, r); err != nil {
		return nil, err
	}
	return r, nil
}

// Run publishes until ctx is cancelled. Then it stops claiming, waits for what
// was handed to Kafka, marks it, and returns nil. An outage of the database or
// of Kafka is not an error: Run waits for it to end, for as long as it takes.
//
// It returns ErrShutdownIncomplete if ShutdownTimeout passed before everything
// in flight was marked: exit anyway, those events will be repeated.
// ErrAlreadyRun is a second call. Any other error means that the clients could
// not be built from the settings: correct them.
func (r *Relay) Run(ctx context.Context) error {
	if !r.started.CompareAndSwap(false, true) {
		return ErrAlreadyRun
	}
	pool, err := r.newPool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	r.pool = pool
	if r.cluster, err = newCluster(&r.cfg, r.kafka, r.waits); err != nil {
		return err
	}
	defer r.cluster.close()
	bell, err := r.newBell()
	if err != nil {
		return err
	}
	r.bell.Store(bell)
	workers, err := r.newWorkers()
	if err != nil {
		return err
	}
	return r.supervise(ctx, bell, workers)
}

// supervise runs the parts with two lifetimes: stop ends the taking of work,
// work ends what is under way, ShutdownTimeout later.
func (r *Relay) supervise(stop context.Context, bell *notify.Doorbell, workers []*worker) error {
	work, abandon := context.WithCancel(context.WithoutCancel(stop))
	defer abandon()

	var helpers sync.WaitGroup
	var bellErr error
	helpers.Go(func() { bellErr = bell.Run(stop) })
	helpers.Go(func() { r.cluster.run(work) })
	helpers.Go(func() { r.runSampler(stop) })
	helpers.Go(func() { r.keepLowWater(stop) })
	helpers.Go(func() { r.sweepLowWater(stop) })
	for i, w := range workers {
		r.rounds.Go(func() {
			if i == 0 {
				w.lead(stop, work)
			} else {
				w.assist(stop, work)
			}
		})
	}

	<-stop.Done()
	incomplete := !waitFor(&r.rounds, r.cfg.ShutdownTimeout)
	abandon()
	r.rounds.Wait()
	for _, w := range workers {
		w.publisher.close()
	}
	helpers.Wait()
	if incomplete {
		return errors.Join(ErrShutdownIncomplete, bellErr)
	}
	return bellErr
}

// waitFor reports whether the group was done in time.
func waitFor(wg *sync.WaitGroup, limit time.Duration) bool {
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return true
	case <-time.After(limit):
		return false
	}
}

func (r *Relay) newPool(ctx context.Context) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(r.cfg.DatabaseURL)
	if err != nil {
		return nil, errors.New("DATABASE_URL does not parse")
	}
	if cfg.ConnConfig.RuntimeParams["application_name"] == "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = "outbox-relay"
	}
	cfg.BeforeConnect = pgcred.Renew(r.cfg.DatabaseURL)
	// Each worker holds one for its claim and one for the mark of the last; the
	// doorbell, its look and the sampler need one now and then.
	cfg.MaxConns = max(cfg.MaxConns, 2*int32(r.cfg.Workers)+3)
	if cfg.PingTimeout == 0 {
		cfg.PingTimeout = pingTimeout // of a connection that was idle
	}
	return pgxpool.NewWithConfig(ctx, cfg)
}

func (r *Relay) newBell() (*notify.Doorbell, error) {
	url := r.cfg.ListenURL
	if url == "" {
		url = r.cfg.DatabaseURL
	}
	return notify.New(notify.Config{
		ListenURL: url,
		Pool:      r.pool,
		Table:     r.table,
		Mode:      r.cfg.Notify,
		Tick:      r.cfg.PollInterval,
		Rate:      r.cfg.BellRate,
		Poll:      r.cfg.BellPoll,
		Look:      r.look,
		Glance:    r.glance,
		Logger:    r.log,
	})
}

// databaseFailed says that the database failed, once. The other connections are
// of the same age. They may be dead without a sign, or lead to a primary that has
// become a standby, and each would cost another round to find out.
func (r *Relay) databaseFailed(ctx context.Context, err error) {
	r.database.failed(ctx, pgerr.OneLine(adviseMode(err, "DATABASE_URL")))
	r.pool.Reset()
	r.low.dropCursors() // marks may be gone after a crash
}

// look is the doorbell's question whether the relay may sleep.
func (r *Relay) look(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.PublishTimeout)
	defer cancel()
	// One statement, mostly: the role may have settings that do not let it.
	skip := r.waits.exclusions()
	if left, err := r.sql.glance(ctx, r.pool, skip, r.low.bound(skip.version), ""); err == nil {
		return left, nil
	}
	conn, err := r.pool.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Release()
	return r.sql.anyLeft(ctx, conn, skip, r.low.bound(skip.version))
}

// readFailures reads which keys wait, if that may have changed.
func (r *Relay) readFailures(ctx context.Context, tick bool) error {
	if !r.waits.outdated(tick) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.PublishTimeout)
	defer cancel()
	keys, err := r.sql.waitingKeys(ctx, r.pool, r.cfg.OnPoison == Block)
	if err != nil {
		return err
	}
	r.waits.setKeys(keys)
	return nil
}

var errSlowLook = errors.New("looks for unpublished rows are slow now")

// glance is what the doorbell asks before it wakes a relay at rest. It stands
// for a claim that found nothing, and does for it what such a claim does.
//
// While a walk from the first row is quick, a glance is one, which spares a
// relay at rest the statement of a sweep. Where it is not, no glance is made on
// the listening connection, which hears nothing meanwhile.
func (r *Relay) glance(ctx context.Context, q notify.Querier, also string, dest ...any) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.PublishTimeout)
	defer cancel()
	quick := r.low.quick()
	if q != notify.Querier(r.pool) && !quick {
		return false, errSlowLook
	}
	if err := r.readFailures(ctx, true); err != nil {
		return false, err
	}
	skip := r.waits.exclusions()
	above := r.low.bound(skip.version)
	if quick {
		above = bound{}
	}
	began := time.Now()
	left, err := r.sql.glance(ctx, q, skip, above, also, dest...)
	took := time.Since(began)
	if above.id == 0 {
		r.low.walked(took)
	}
	if left || above.id > 0 {
		r.low.sweep() // a claim sees nothing below the bound
	}
	if err != nil || left {
		return left, err
	}
	r.low.idled(took)
	r.database.works(ctx)
	r.cluster.nothingToPublish(ctx)
	return false, nil
}

// team is how many relays drain the backlog, and which of them this one is.
func (r *Relay) team() (size, rank int) {
	bell := r.bell.Load()
	if bell == nil {
		return 1, 0
	}
	s := bell.State()
	return max(1, s.Team), s.Rank
}

func (r *Relay) newWorkers() ([]*worker, error) {
	var workers []*worker
	for i := range r.cfg.Workers {
		p, err := newProducer(&r.cfg, r.cluster.limits)
		if err != nil {
			for _, w := range workers {
				w.publisher.close()
			}
			return nil, err
		}
		workers = append(workers, &worker{
			r: r, index: i, publisher: p, sizing: newSizing(&r.cfg), busy: busyKeys{},
		})
	}
	return workers, nil
}

// sharers is how many of this relay's workers share in a backlog: all of them
// where it drains alone, and fewer beside other relays. The walk of each slice
// reads the rows of all others, so that many slices cost more than they bring.
func (r *Relay) sharers() int {
	const slices = 4
	team, _ := r.team()
	return min(max(1, max(slices, r.cfg.Workers)/team), r.cfg.Workers)
}

// callAssistants wakes the other workers, if they sleep.
func (r *Relay) callAssistants() {
	for range r.sharers() - 1 {
		select {
		case r.backlog <- struct{}{}:
		default:
			return
		}
	}
}

// Health returns a snapshot. It may be called at any time, also before Run.
func (r *Relay) Health() Health {
	h := Health{}
	h.DatabaseUp, h.DatabaseError = r.database.state()
	h.BrokerUp, h.BrokerError = r.kafka.state()
	if bell := r.bell.Load(); bell != nil {
		s := bell.State()
		h.ListenerUp, h.Sentinel, h.BellArmed = s.Listening, s.Sentinel, s.Armed
	}
	h.WaitingTopics, h.WaitingRows = r.waits.snapshot()
	if s, ok := r.sample.last(); ok {
		h.Sampled, h.OldestUnpublished, h.Unpublished = true, s.oldest, s.unpublished
		h.ParkedRows = s.parked
	}
	return h
}

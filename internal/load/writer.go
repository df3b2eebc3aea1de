package load

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// Writer commits events in an open loop. Set the fields before Run.
type Writer struct {
	// URL of the database.
	URL string
	// Insert commits one event, for example InsertOutbox(table).
	Insert InsertFunc
	// Ledger is told of each event.
	Ledger *Ledger
	// Topics that the keys are spread over; each key stays on one.
	Topics []string
	// Keys is the number of partition keys, KeyPrefix what their names begin
	// with. Each key is written by one connection only: order means something
	// only among transactions that follow each other.
	Keys      int
	KeyPrefix string
	// Conns is the number of connections. More than Keys are not opened.
	Conns int
	// Rate in events a second; 0 writes as fast as the commits go.
	Rate float64
	// Burst is how many events are due at once; 0 and 1 spread them evenly.
	Burst int
	// Count of events after which Run returns; 0 writes until ctx ends.
	Count int
	// Warmup is how many events at the start Behind leaves out. Each
	// connection's first insert is slow, since it prepares its statement.
	Warmup int
	// PayloadSize in bytes.
	PayloadSize int
	// Patient has Run try to connect until the database takes connections. By
	// default a failure ends it.
	Patient bool

	sends  atomic.Int64
	behind atomic.Int64
}

// Run connects, then writes until Count events are committed or ctx ends,
// which is no error; the inserts under way are finished first. A lost
// connection is made again and the event at hand is written again under its id.
// Any other error of the database ends Run.
func (w *Writer) Run(ctx context.Context) error {
	conns, err := w.connect(ctx)
	if err != nil {
		return err
	}
	// The pace starts only now: time spent on connecting is not a lag to
	// catch up with.
	pacer := NewBurstPacer(w.Rate, w.Count, w.Burst)
	group, ctx := errgroup.WithContext(ctx)
	for i, conn := range conns {
		group.Go(func() error { return w.write(ctx, conn, pacer, w.keys(i, len(conns))) })
	}
	return group.Wait()
}

// connect returns all connections, or none when ctx ends meanwhile.
func (w *Writer) connect(ctx context.Context) ([]*pgx.Conn, error) {
	conns := make([]*pgx.Conn, min(w.Conns, w.Keys))
	dial, dialCtx := errgroup.WithContext(ctx)
	for i := range conns {
		dial.Go(func() (err error) {
			if w.Patient {
				conns[i], err = w.reconnect(dialCtx)
			} else {
				conns[i], err = pgx.Connect(dialCtx, w.URL)
			}
			return err
		})
	}
	err := dial.Wait()
	if err == nil && ctx.Err() == nil {
		return conns, nil
	}
	for _, conn := range conns {
		closeConn(conn)
	}
	if ctx.Err() != nil {
		err = nil // a stop, and no fault of the database
	} else {
		err = fmt.Errorf("connect writers: %w", err)
	}
	return nil, err
}

// Behind returns by how much the most delayed send after Warmup missed its
// time. A figure far above a millisecond or two says that the machine, or the
// number of connections, did not carry the rate.
func (w *Writer) Behind() time.Duration { return time.Duration(w.behind.Load()) }

// keys returns the keys of connection i of n, each with its first event.
func (w *Writer) keys(i, n int) []*Event {
	var keys []*Event
	for k := i; k < w.Keys; k += n {
		keys = append(keys, &Event{
			Key:         fmt.Sprintf("%s%04d", w.KeyPrefix, k+1),
			Topic:       w.Topics[k%len(w.Topics)],
			PayloadSize: w.PayloadSize,
		})
	}
	return keys
}

func (w *Writer) write(ctx context.Context, conn *pgx.Conn, pacer *Pacer, keys []*Event) error {
	defer func() { closeConn(conn) }()
	for n := 0; ; n++ {
		due, ok := pacer.Wait(ctx)
		if !ok {
			return nil
		}
		event := keys[n%len(keys)]
		id, err := uuid.NewV7()
		if err != nil {
			return fmt.Errorf("make an event id: %w", err)
		}
		event.ID = id
		event.Seq++

		now := time.Now()
		if w.sends.Add(1) > int64(w.Warmup) {
			w.noteBehind(now.Sub(due))
		}
		w.Ledger.Sending(*event, now)
		if conn, err = w.commit(ctx, conn, *event); err != nil {
			return fmt.Errorf("write event %d of key %s: %w", event.Seq, event.Key, err)
		}
	}
}

func (w *Writer) noteBehind(lag time.Duration) {
	for {
		old := w.behind.Load()
		if int64(lag) <= old || w.behind.CompareAndSwap(old, int64(lag)) {
			return
		}
	}
}

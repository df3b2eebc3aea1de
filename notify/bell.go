package notify

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// The classes of the advisory locks; the object is the table's oid. A
// two-part key is used so that pg_locks shows which table a lock belongs to.
// bellClass stands in the trigger too.
const (
	bellClass     int32 = 0x6f627862 // "obxb"
	sentinelClass int32 = 0x6f627873 // "obxs"
	teamClass     int32 = 0x6f627874 // "obxt"
)

// Channel is the channel on which the trigger of the table with this oid
// notifies.
func Channel(relid uint32) string {
	return "outbox_relay_" + strconv.FormatUint(uint64(relid), 10)
}

// session is what this relay holds on one listening connection. It is touched
// only by the goroutine that owns the connection.
type session struct {
	conn  *pgx.Conn
	relid uint32
	// direct: Postgres itself is at the other end. Otherwise it is a pooler,
	// and nothing may be left in its server's session, which serves others
	// next, before a notification has shown that the session is ours.
	direct    bool
	settled   bool
	idleLimit time.Duration // after which the server ends the session
	sentinel  bool
	armed     bool

	member     bool // of the team: holds its lock
	team, rank int
}

// settle sets the session's parameters, after connecting, because poolers
// refuse them at the start.
func (s *session) settle(ctx context.Context) error {
	if s.settled {
		return nil
	}
	_, err := s.conn.Exec(ctx, fmt.Sprintf(
		"SET statement_timeout = %d; SET lock_timeout = 0", requestTimeout.Milliseconds()), pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		return fmt.Errorf("set up the listening session: %w", err)
	}
	s.settled = true
	return nil
}

const (
	trySQL    = `SELECT pg_catalog.pg_try_advisory_lock($1, $2)`
	unlockSQL = `SELECT pg_catalog.pg_advisory_unlock($1, $2)`
)

// trySentinel makes this relay the sentinel if no other is.
func (s *session) trySentinel(ctx context.Context) error {
	return s.try(ctx, sentinelClass, &s.sentinel)
}

// arm takes the bell if no writer's transaction holds it.
func (s *session) arm(ctx context.Context) error {
	if !s.sentinel {
		return nil
	}
	return s.try(ctx, bellClass, &s.armed)
}

// try takes a lock once: session locks count, and one taken twice would have
// to be released twice.
func (s *session) try(ctx context.Context, class int32, held *bool) error {
	if *held {
		return nil
	}
	if err := s.conn.QueryRow(ctx, trySQL, class, int32(s.relid)).Scan(held); err != nil {
		return fmt.Errorf("try advisory lock (%d, %d): %w", class, s.relid, err)
	}
	return nil
}

// disarm releases the bell, so that writers stop notifying.
func (s *session) disarm(ctx context.Context) error {
	if !s.armed {
		return nil
	}
	var was bool
	if err := s.conn.QueryRow(ctx, unlockSQL, bellClass, int32(s.relid)).Scan(&was); err != nil {
		return fmt.Errorf("release advisory lock (%d, %d): %w", bellClass, s.relid, err)
	}
	s.armed = false
	return nil
}

// limitIdle has the server end this session once nothing was asked on it for
// that long.
func (s *session) limitIdle(ctx context.Context, limit time.Duration) error {
	if s.idleLimit == limit {
		return nil
	}
	const set = `SELECT pg_catalog.set_config('idle_session_timeout', $1, false)`
	if _, err := s.conn.Exec(ctx, set, strconv.FormatInt(limit.Milliseconds(), 10)); err != nil {
		return fmt.Errorf("set idle_session_timeout: %w", err)
	}
	s.idleLimit = limit
	return nil
}

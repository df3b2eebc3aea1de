package notify

import (
	"context"
	"fmt"
	"slices"
)

// The relays that drain a backlog are a team: each holds one shared advisory
// lock, and finds in pg_locks who else does. Their backends' pids give each its
// rank. Nothing rests on it but how well they keep out of each other's way.
const (
	joinSQL  = `SELECT pg_catalog.pg_try_advisory_lock_shared($1, $2)`
	leaveSQL = `SELECT pg_catalog.pg_advisory_unlock_shared($1, $2)`
	teamSQL  = `SELECT pid, pid = pg_catalog.pg_backend_pid()
  FROM pg_catalog.pg_locks
 WHERE locktype = 'advisory' AND classid::bigint = $1 AND objid = $2 AND granted
   AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
 ORDER BY pid`
)

// joinTeam joins while this relay drains, leaves when it does not, and sees who
// else is there.
func (s *session) joinTeam(ctx context.Context, drains bool) error {
	switch {
	case drains && !s.member:
		if err := s.conn.QueryRow(ctx, joinSQL, teamClass, int32(s.relid)).Scan(&s.member); err != nil {
			return fmt.Errorf("join the relays that drain: %w", err)
		}
	case !drains && s.member:
		if err := s.conn.QueryRow(ctx, leaveSQL, teamClass, int32(s.relid)).Scan(nil); err != nil {
			return fmt.Errorf("leave the relays that drain: %w", err)
		}
		s.member = false
	}
	if s.team, s.rank = 0, 0; !s.member {
		return nil
	}
	rows, err := s.conn.Query(ctx, teamSQL, int64(teamClass), s.relid)
	if err != nil {
		return fmt.Errorf("see which relays drain: %w", err)
	}
	var (
		pid  int32
		mine bool
		me   []bool
	)
	for rows.Next() {
		if err := rows.Scan(&pid, &mine); err != nil {
			rows.Close()
			return fmt.Errorf("see which relays drain: %w", err)
		}
		me = append(me, mine)
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("see which relays drain: %w", err)
	}
	if rank := slices.Index(me, true); rank >= 0 {
		s.team, s.rank = len(me), rank
	}
	return nil
}

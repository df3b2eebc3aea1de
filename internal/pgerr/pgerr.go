// Package pgerr reads errors of pgx.
package pgerr

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// Refused tells whether the database answered and will not do it, now or later:
// a wrong password, a missing right, a table that is gone.
func Refused(err error) bool {
	answer, ok := errors.AsType[*pgconn.PgError](err)
	return ok && !transient(answer.Code)
}

// Unprepared tells whether a prepared statement was missing in the session, or
// one of its name was there already: statements were prepared in one session
// and run in another, as behind a pooler in transaction mode.
func Unprepared(err error) bool {
	answer, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (answer.Code == "26000" || answer.Code == "42P05")
}

// transient tells whether a server that answers so may do it later: it starts
// up or shuts down (57), is short of something (53), lost the connection (08),
// rolled back for somebody else's sake (40), could not have a lock (55), or ended
// a session that was frozen in its transaction (25P03, 25P04).
func transient(code string) bool {
	return code == "25P03" || code == "25P04" ||
		slices.Contains([]string{"57", "53", "08", "40", "55"}, code[:min(2, len(code))])
}

// Connecting says what to do about an error of a connection that did not come
// about. Its text does not hold the URL.
func Connecting(err error) error {
	answer, answered := errors.AsType[*pgconn.PgError](err)
	if !answered {
		return fmt.Errorf("the database cannot be reached: %w: check host, port and network", OneLine(err))
	}
	advice := "see what Postgres says"
	switch {
	case strings.HasPrefix(answer.Code, "28") || answer.Code == "3D000":
		advice = "check user, password and database name"
	case strings.HasPrefix(answer.Code, "53"):
		advice = "raise max_connections or the role's CONNECTION LIMIT, or run fewer clients"
	case strings.HasPrefix(answer.Code, "57"):
		advice = "the server is starting or stopping, try again"
	}
	return fmt.Errorf("the database refuses: %s (%s): %s", answer.Message, answer.Code, advice)
}

// OneLine puts an error that pgx spreads over several lines, one for each
// address and attempt, on one line that names each cause once. That TLS was
// refused is left out beside another cause: with sslmode=prefer, the default, it
// means nothing.
func OneLine(err error) error {
	if err == nil || !strings.Contains(err.Error(), "\n") {
		return err
	}
	return oneLineError{err}
}

type oneLineError struct{ err error }

func (e oneLineError) Error() string {
	var parts []string
	refusedTLS := ""
	for line := range strings.Lines(e.err.Error()) {
		switch line = strings.TrimSpace(line); {
		case strings.HasSuffix(line, "tls error: server refused TLS connection"):
			refusedTLS = line
		case !slices.Contains(parts, line):
			parts = append(parts, line)
		}
	}
	if len(parts) == 1 && refusedTLS != "" {
		parts = append(parts, refusedTLS)
	}
	return strings.Join(parts, " ")
}

func (e oneLineError) Unwrap() error { return e.err }

// Package pgcred keeps a connection's credentials fresh: passwords and
// certificates are rotated while a relay runs.
package pgcred

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
)

// Renew returns a function that reads what a connection string names anew (the
// password file, certificates and keys) into the configuration of a connection
// about to be made. It suits [pgxpool.Config]'s BeforeConnect. Its error means
// that a file cannot be read or is of no use at the moment; the next attempt may
// find it whole. A password file that cannot be read is none to pgx: the server
// then refuses.
//
// What stands in the string itself stays what it is until a restart.
func Renew(connString string) func(context.Context, *pgx.ConnConfig) error {
	return func(_ context.Context, c *pgx.ConnConfig) error {
		fresh, err := pgx.ParseConfig(connString)
		if err != nil {
			// pgx's own message quotes the string.
			if file, ok := errors.AsType[*fs.PathError](err); ok {
				return fmt.Errorf("read credentials anew: %w", file)
			}
			return errors.New("read credentials anew: a certificate, a key or a service file that the connection string names is incomplete")
		}
		c.Password = fresh.Password
		c.Host, c.Port, c.TLSConfig, c.Fallbacks = fresh.Host, fresh.Port, fresh.TLSConfig, fresh.Fallbacks // one thing to pgx
		return nil
	}
}

package pgerr

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestOneLineNamesEachCauseOnce(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ text, want string }{
		"one line":             {"no rows", "no rows"},
		"the same twice":       {"connect to `db`:\n\th: refused\n\th: refused", "connect to `db`: h: refused"},
		"TLS and a cause":      {"connect:\n\th: tls error: server refused TLS connection\n\th: bad password", "connect: h: bad password"},
		"nothing but TLS":      {"connect:\n\th: tls error: server refused TLS connection", "connect: h: tls error: server refused TLS connection"},
		"several addresses":    {"connect:\n\ta: refused\n\tb: timeout", "connect: a: refused b: timeout"},
		"empty lines in it":    {"a\n\n\nb", "a  b"},
		"trailing line breaks": {"a\n", "a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cause := errors.New(tc.text)
			got := OneLine(cause)
			if got.Error() != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if !errors.Is(got, cause) {
				t.Error("the cause is lost")
			}
		})
	}
}

func TestRefusedTellsAnswersFromOutages(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]bool{
		"28P01": true, "42P01": true, "42501": true, "23514": true,
		"25006": true, "25P03": false, "25P04": false,
		"57P03": false, "53300": false, "40P01": false, "55P03": false, "08006": false,
	} {
		if got := Refused(fmt.Errorf("claim: %w", &pgconn.PgError{Code: code})); got != want {
			t.Errorf("%s: %v, want %v", code, got, want)
		}
	}
	if Refused(errors.New("connection refused")) {
		t.Error("a network error is not the database's answer")
	}
}

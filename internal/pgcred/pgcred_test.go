package pgcred

import (
	"bytes"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

func TestRenewReadsThePasswordFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pgpass")
	testenv.WriteFile(t, file, []byte("*:*:*:relay:first\n"))
	connString := "postgres://relay@localhost:5432/db?sslmode=disable&passfile=" + url.QueryEscape(file)
	config := parse(t, connString)
	testenv.WriteFile(t, file, []byte("*:*:*:relay:second\n"))
	if err := Renew(connString)(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	if config.Password != "second" {
		t.Errorf("the password is %q, want the second", config.Password)
	}
}

func TestRenewReadsTheCertificate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	ca := testenv.NewAuthority(t)
	ca.Client(t, cert, key)
	connString := "postgres://relay:secret@localhost:5432/db?sslmode=require&sslcert=" + url.QueryEscape(cert) + "&sslkey=" + url.QueryEscape(key)
	config := parse(t, connString)
	first := config.TLSConfig.Certificates[0].Certificate[0]
	ca.Client(t, cert, key)
	if err := Renew(connString)(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(config.TLSConfig.Certificates[0].Certificate[0], first) {
		t.Error("the certificate is the first one still")
	}

	// Half of a rotation: the key is not there yet.
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	if err := Renew(connString)(t.Context(), config); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("without the key: %v, want an error that does not show the password", err)
	}
}

func parse(t *testing.T, connString string) *pgx.ConnConfig {
	t.Helper()
	config, err := pgx.ParseConfig(connString)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

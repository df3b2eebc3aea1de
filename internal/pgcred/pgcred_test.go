package pgcred

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestRenewReadsThePasswordFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pgpass")
	write(t, file, []byte("*:*:*:relay:first\n"))
	connString := "postgres://relay@localhost:5432/db?sslmode=disable&passfile=" + url.QueryEscape(file)
	config := parse(t, connString)
	write(t, file, []byte("*:*:*:relay:second\n"))
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
	writePair(t, cert, key)
	connString := "postgres://relay:secret@localhost:5432/db?sslmode=require&sslcert=" + url.QueryEscape(cert) + "&sslkey=" + url.QueryEscape(key)
	config := parse(t, connString)
	first := config.TLSConfig.Certificates[0].Certificate[0]
	writePair(t, cert, key)
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

func write(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// writePair writes a new certificate, signed by itself, and its key.
func writePair(t *testing.T, cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "relay"},
		NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	write(t, cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	write(t, key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
}

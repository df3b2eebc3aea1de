package testenv

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority signs certificates, and stands in a file of its own.
type Authority struct {
	// File holds its own certificate, in PEM form.
	File string

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority. Its file is gone after the test.
func NewAuthority(tb testing.TB) *Authority {
	tb.Helper()
	a := &Authority{key: newKey(tb), File: filepath.Join(tb.TempDir(), "ca.pem")}
	der := sign(tb, &x509.Certificate{
		Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, a.key, nil)
	var err error
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		tb.Fatal(err)
	}
	WriteFile(tb, a.File, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return a
}

// Pool holds this authority alone.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// Server is the TLS side of a server with a certificate for the IP address.
func (a *Authority) Server(tb testing.TB, addr string) *tls.Config {
	tb.Helper()
	key := newKey(tb)
	der := sign(tb, &x509.Certificate{IPAddresses: []net.IP{net.ParseIP(addr)}}, key, a)
	return &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
	}
}

// Client writes a new certificate and its key to files.
func (a *Authority) Client(tb testing.TB, certFile, keyFile string) {
	tb.Helper()
	key := newKey(tb)
	der := sign(tb, &x509.Certificate{Subject: pkix.Name{CommonName: "relay"}}, key, a)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	WriteFile(tb, certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	WriteFile(tb, keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

// sign signs by the authority, or by the key itself if there is none.
func sign(tb testing.TB, template *x509.Certificate, key *ecdsa.PrivateKey, by *Authority) []byte {
	tb.Helper()
	template.SerialNumber, template.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(time.Hour)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	parent, signer := template, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		tb.Fatal(err)
	}
	return der
}

// WriteFile writes a file that its owner alone may read.
func WriteFile(tb testing.TB, file string, content []byte) {
	tb.Helper()
	if err := os.WriteFile(file, content, 0o600); err != nil {
		tb.Fatal(err)
	}
}

package relay

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const dialTimeout = 3 * time.Second

// securityOptions encrypt and authenticate the connections to Kafka. What stands
// in files is read anew for each connection, so that certificates and passwords
// can be rotated without a restart.
func securityOptions(cfg *Config) []kgo.Opt {
	opts := []kgo.Opt{kgo.DialTimeout(dialTimeout)}
	if cfg.TLS {
		opts = append(opts, kgo.Dialer(cfg.dialTLS))
	}
	if mechanism, ok := mechanisms[cfg.SASLMechanism]; ok {
		opts = append(opts, kgo.SASL(mechanism(cfg)))
	}
	return opts
}

func (c *Config) dialTLS(ctx context.Context, network, addr string) (net.Conn, error) {
	config, err := c.tlsConfig()
	if err != nil {
		return nil, err
	}
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTimeout}, Config: config} // the handshake included
	return dialer.DialContext(ctx, network, addr)
}

func (c *Config) tlsConfig() (*tls.Config, error) {
	authorities, err := c.tlsAuthorities()
	if err != nil {
		return nil, err
	}
	own, err := c.tlsCertificates()
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: authorities, Certificates: own}, nil
}

// tlsAuthorities are nil for those of the system.
func (c *Config) tlsAuthorities() (*x509.CertPool, error) {
	if c.TLSCAFile == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(c.TLSCAFile)
	if err != nil {
		return nil, fmt.Errorf("KAFKA_TLS_CA_FILE: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("KAFKA_TLS_CA_FILE=%q holds no certificate in PEM form", c.TLSCAFile)
	}
	return pool, nil
}

func (c *Config) tlsCertificates() ([]tls.Certificate, error) {
	if c.TLSCertFile == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(c.TLSCertFile, c.TLSKeyFile)
	if err != nil {
		return nil, fmt.Errorf("KAFKA_TLS_CERT_FILE, KAFKA_TLS_KEY_FILE: %w", err)
	}
	return []tls.Certificate{pair}, nil
}

// mechanisms of SASL, by the names that Kafka has for them.
var mechanisms = map[string]func(*Config) sasl.Mechanism{
	"PLAIN": func(c *Config) sasl.Mechanism {
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			password, err := c.saslPassword()
			return plain.Auth{User: c.SASLUsername, Pass: password}, err
		})
	},
	"SCRAM-SHA-256": func(c *Config) sasl.Mechanism { return scram.Sha256(c.scramAuth) },
	"SCRAM-SHA-512": func(c *Config) sasl.Mechanism { return scram.Sha512(c.scramAuth) },
}

func (c *Config) scramAuth(context.Context) (scram.Auth, error) {
	password, err := c.saslPassword()
	return scram.Auth{User: c.SASLUsername, Pass: password}, err
}

// saslPassword leaves out the line end that editors and secret stores append.
func (c *Config) saslPassword() (string, error) {
	if c.SASLPasswordFile == "" {
		return c.SASLPassword, nil
	}
	content, err := os.ReadFile(c.SASLPasswordFile)
	if err != nil {
		return "", fmt.Errorf("KAFKA_SASL_PASSWORD_FILE: %w", err)
	}
	return strings.TrimRight(string(content), "\r\n"), nil
}

// tlsFaults lists what is wrong with these settings and their files.
func (c *Config) tlsFaults() (faults []error) {
	if !c.TLS {
		if c.TLSCAFile+c.TLSCertFile+c.TLSKeyFile != "" {
			faults = append(faults, errors.New("KAFKA_TLS_CA_FILE, KAFKA_TLS_CERT_FILE and KAFKA_TLS_KEY_FILE need KAFKA_TLS=true"))
		}
		return faults
	}
	if _, err := c.tlsAuthorities(); err != nil {
		faults = append(faults, err)
	}
	if (c.TLSCertFile == "") != (c.TLSKeyFile == "") {
		faults = append(faults, errors.New("KAFKA_TLS_CERT_FILE and KAFKA_TLS_KEY_FILE belong together: set both or none"))
	} else if _, err := c.tlsCertificates(); err != nil {
		faults = append(faults, err)
	}
	return faults
}

// saslFaults likewise.
func (c *Config) saslFaults() (faults []error) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if c.SASLMechanism == "" {
		if c.SASLUsername+c.SASLPassword+c.SASLPasswordFile != "" {
			fault("KAFKA_SASL_USERNAME, KAFKA_SASL_PASSWORD and KAFKA_SASL_PASSWORD_FILE need KAFKA_SASL_MECHANISM: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
		}
		return faults
	}
	if _, ok := mechanisms[c.SASLMechanism]; !ok {
		fault("KAFKA_SASL_MECHANISM=%q: allowed are PLAIN, SCRAM-SHA-256, SCRAM-SHA-512", c.SASLMechanism)
	}
	if c.SASLUsername == "" {
		fault("KAFKA_SASL_USERNAME is required with KAFKA_SASL_MECHANISM")
	}
	switch password, err := c.saslPassword(); {
	case c.SASLPassword != "" && c.SASLPasswordFile != "":
		fault("KAFKA_SASL_PASSWORD and KAFKA_SASL_PASSWORD_FILE are both set: one of them is enough")
	case err != nil:
		faults = append(faults, err)
	case password == "":
		fault("KAFKA_SASL_PASSWORD or KAFKA_SASL_PASSWORD_FILE is required with KAFKA_SASL_MECHANISM, and may not be empty")
	}
	return faults
}

// kafkaAdvice says what to do where no broker answers. One that is asked for
// something else than its listener speaks mostly closes the connection.
func (c *Config) kafkaAdvice(err error) string {
	_, unknownAuthority := errors.AsType[x509.UnknownAuthorityError](err)
	_, otherName := errors.AsType[x509.HostnameError](err)
	alert, _ := errors.AsType[*net.OpError](err)
	switch {
	case unknownAuthority:
		return "name the authority that signed the brokers' certificates by KAFKA_TLS_CA_FILE"
	case otherName:
		return "the brokers' certificates are for other names than KAFKA_BROKERS, or the advertised listeners, have"
	case alert != nil && alert.Op == "remote error":
		return "the broker refuses the TLS connection: check KAFKA_TLS_CERT_FILE and KAFKA_TLS_KEY_FILE"
	case loginRefused(err):
		return "check KAFKA_SASL_MECHANISM, KAFKA_SASL_USERNAME and the password"
	}
	return fmt.Sprintf("check addresses and network, and whether the listener is one for KAFKA_TLS=%t, KAFKA_SASL_MECHANISM=%q and this user", c.TLS, c.SASLMechanism)
}

// loginRefused tells whether a broker answered and will not let the relay in.
func loginRefused(err error) bool {
	return errors.Is(err, kerr.SaslAuthenticationFailed) || errors.Is(err, kerr.UnsupportedSaslMechanism) ||
		errors.Is(err, kerr.IllegalSaslState)
}

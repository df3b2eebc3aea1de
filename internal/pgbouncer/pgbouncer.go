// Package pgbouncer runs a real PgBouncer in transaction mode before a Postgres
// server, for tests. The program has to be installed, in PATH or in /usr/sbin.
package pgbouncer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"github.com/outbox-relay/outbox-relay/internal/keeper"
)

// PoolSize is how many sessions of the server all clients share.
const PoolSize = 5

const startTimeout = 10 * time.Second

// config lets every client in and gives all of them the sessions of one user.
const config = `[databases]
* = host=%s port=%s user=%s password=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = %d
server_tls_sslmode = prefer
%s`

// keepScript runs a program until the end of its input: the kernel closes that
// pipe when this process ends, however it ends.
const keepScript = `"$0" "$1" & child=$!; read -r _; kill "$child"; wait "$child"`

// Pooler is a running PgBouncer.
type Pooler struct {
	program, dir string
	port         int
	database     url.URL
	keeps        bool
	process      *process
}

type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	log   *bytes.Buffer // to be read after the end
}

// Start starts a PgBouncer before the server at a database URL and waits until
// it takes connections. The caller must Stop it. It fails when the program is
// missing, with what to install.
func Start(ctx context.Context, databaseURL string) (_ *Pooler, err error) {
	p := &Pooler{}
	if p.program, err = find(); err != nil {
		return nil, err
	}
	u, err := url.Parse(databaseURL)
	if err != nil {
		return nil, errors.New("start PgBouncer: the database URL does not parse")
	}
	p.database = *u
	if p.port, err = keeper.FreePort(); err != nil {
		return nil, fmt.Errorf("start PgBouncer: %w", err)
	}
	if p.dir, err = os.MkdirTemp("", "outbox-relay-pgbouncer-"); err != nil {
		return nil, fmt.Errorf("start PgBouncer: %w", err)
	}
	if err := p.configure(ctx); err != nil {
		return nil, errors.Join(err, os.RemoveAll(p.dir))
	}
	if err := p.up(ctx); err != nil {
		return nil, errors.Join(err, os.RemoveAll(p.dir))
	}
	return p, nil
}

func find() (string, error) {
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("start PgBouncer: it is not installed (on Debian: apt-get install pgbouncer)")
}

func (p *Pooler) configure(ctx context.Context) error {
	version, err := exec.CommandContext(ctx, p.program, "--version").Output()
	if err != nil {
		return fmt.Errorf("ask PgBouncer for its version: %w", err)
	}
	var major, minor int
	if match := regexp.MustCompile(`PgBouncer (\d+)\.(\d+)`).FindSubmatch(version); match != nil {
		major, _ = strconv.Atoi(string(match[1]))
		minor, _ = strconv.Atoi(string(match[2]))
	}
	more := ""
	if p.keeps = major > 1 || minor >= 21; p.keeps {
		more = "max_prepared_statements = 200\n"
	}
	password, _ := p.database.User.Password()
	text := fmt.Sprintf(config, p.database.Hostname(), p.database.Port(), p.database.User.Username(), password, p.port, PoolSize, more)
	if err := os.WriteFile(p.file(), []byte(text), 0o600); err != nil {
		return fmt.Errorf("write the settings of PgBouncer: %w", err)
	}
	account := credential()
	if account == nil {
		return nil
	}
	for _, path := range []string{p.dir, p.file()} {
		if err := os.Chown(path, int(account.Uid), int(account.Gid)); err != nil {
			return fmt.Errorf("give the settings to the account of PgBouncer: %w", err)
		}
	}
	return nil
}

func (p *Pooler) file() string { return filepath.Join(p.dir, "pgbouncer.ini") }

// credential is that of an account without rights, for root, which PgBouncer
// refuses to run as.
func credential() *syscall.Credential {
	nobody, err := user.Lookup("nobody")
	if os.Geteuid() != 0 || err != nil {
		return nil
	}
	uid, _ := strconv.ParseUint(nobody.Uid, 10, 32)
	gid, _ := strconv.ParseUint(nobody.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// URL is that of the database through the pooler. It stays the same over a
// restart.
func (p *Pooler) URL() string {
	u := p.database
	u.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port))
	query := u.Query()
	query.Set("sslmode", "disable")
	u.RawQuery = query.Encode()
	return u.String()
}

// KeepsPreparedStatements tells whether this version, 1.21 or later, lets
// clients use prepared statements.
func (p *Pooler) KeepsPreparedStatements() bool { return p.keeps }

// Restart ends all connections at once and comes back on the same port.
func (p *Pooler) Restart(ctx context.Context) error {
	if err := p.down(); err != nil {
		return err
	}
	return p.up(ctx)
}

// Stop ends the pooler and removes its files.
func (p *Pooler) Stop() error { return errors.Join(p.down(), os.RemoveAll(p.dir)) }

func (p *Pooler) up(ctx context.Context) error {
	log := &bytes.Buffer{}
	cmd := exec.Command("sh", "-c", keepScript, p.program, p.file())
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: credential()}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("start PgBouncer: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start PgBouncer: %w", err)
	}
	p.process = &process{cmd: cmd, stdin: stdin, log: log}
	if err := p.awaitPort(ctx); err != nil {
		_ = p.down()
		return fmt.Errorf("start PgBouncer: %w; its log:\n%s", err, log)
	}
	return nil
}

func (p *Pooler) awaitPort(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	retry := time.NewTicker(10 * time.Millisecond)
	defer retry.Stop()
	var dialer net.Dialer
	for {
		conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)))
		if err == nil {
			return conn.Close()
		}
		select {
		case <-retry.C:
		case <-ctx.Done():
			return err
		}
	}
}

// down waits for the end. A pooler that was stopped by a signal has done well.
func (p *Pooler) down() error {
	if p.process == nil {
		return nil
	}
	_ = p.process.stdin.Close()
	err := p.process.cmd.Wait()
	if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended {
		return fmt.Errorf("stop PgBouncer: %w", err)
	}
	p.process = nil
	return nil
}

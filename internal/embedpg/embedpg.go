// Package embedpg runs a real Postgres 18 for the demo, the tests and the
// benchmarks, on a machine where none is installed.
//
// The server's binaries are downloaded once into a cache. Its data lives in a
// temporary folder that is removed at the end, and it ends when this process
// does, even when that is killed. It runs in a child process of its own, whose
// entry is [RunChild]; a program that calls [Start] must call RunChild first
// thing in main, and a test in TestMain.
package embedpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"sync"

	"github.com/outbox-relay/outbox-relay/internal/keeper"
)

const role = "postgres"

// Options say how a server is started. The zero value is ready to use.
type Options struct {
	// Port is the TCP port on 127.0.0.1; 0 takes a free one.
	Port int
	// Parameters are server settings by name, such as fsync=off. They are
	// added to max_connections=400, which they may override.
	Parameters map[string]string
	// CacheDir is where the downloaded binaries are kept. The default is the
	// folder outbox-relay in the user's cache; for root it is
	// /var/cache/outbox-relay, since the account that runs Postgres for root
	// cannot look into root's home.
	CacheDir string
	// Log receives the server's output at start and stop. The default
	// discards it; errors carry it in any case.
	Log io.Writer
}

// State is what the child tells its parent about a running server.
type State struct {
	Port, PID int
	Password  string
}

// Server is a running Postgres server.
type Server struct {
	keeper *keeper.Keeper

	mu    sync.Mutex
	state State
}

// RunChild runs the server and exits when this process was started for it by
// [Start], and returns at once otherwise.
func RunChild() {
	keeper.RunChild(role, func(dir string) keeper.Service { return &service{dir: dir} })
}

// Start starts a server and waits until it takes connections: about 2 seconds,
// and on the first use of a machine a download of some 10 MB more. The caller
// must Stop it.
//
// It fails when the binaries cannot be downloaded or the server does not start,
// with its output in the error, and when ctx ends first.
func Start(ctx context.Context, o Options) (*Server, error) {
	k, err := keeper.Start(role, o.Log)
	if err != nil {
		return nil, fmt.Errorf("start embedded Postgres: %w", err)
	}
	o.Log = nil // a writer cannot travel to the child
	s := &Server{keeper: k}
	if err := s.call(ctx, "Start", o); err != nil {
		if ctx.Err() != nil {
			// The child may be in the middle of a download: it ends by
			// itself, and the caller need not wait for that.
			go func() { _ = k.Close() }()
			return nil, fmt.Errorf("start embedded Postgres: %w", err)
		}
		return nil, fmt.Errorf("start embedded Postgres: %w", errors.Join(err, k.Close()))
	}
	return s, nil
}

// URL returns the connection URL of the database postgres for its superuser.
// It stays the same over a restart.
func (s *Server) URL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, s.state.Password),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(s.state.Port)),
		Path:     "/postgres",
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// PID returns the process id of the server's main process, which changes with
// every restart.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.PID
}

// Restart stops the server in the fast way, which ends all its sessions, and
// starts it again on the same port and data. It also brings back a server that
// died. After an error the server is down, and Restart may be tried again.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.call(ctx, "Restart", struct{}{}); err != nil {
		return fmt.Errorf("restart embedded Postgres: %w", err)
	}
	return nil
}

// Stop ends the server and removes its data. Further calls return the error of
// the first.
func (s *Server) Stop() error {
	if err := s.keeper.Close(); err != nil {
		return fmt.Errorf("stop embedded Postgres: %w", err)
	}
	return nil
}

func (s *Server) call(ctx context.Context, method string, args any) error {
	var state State
	if err := s.keeper.Call(ctx, method, args, &state); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = state
	return nil
}

package keeper

import (
	"context"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// serviceName is the name under which the child registers its one service.
const serviceName = "Service"

// closeTimeout bounds how long a child outlives its parent. Only a call that
// hangs, such as a download from a dead network, ever takes so long.
const closeTimeout = 90 * time.Second

// Service is what a child keeps. Its exported methods of the form
// func(args T, reply *R) error can be called by the parent, as net/rpc
// describes; they may run at the same time.
type Service interface {
	// Close stops the server. It runs once, possibly while a call is still
	// under way, which it has to wait for.
	Close() error
}

// RunChild serves the parent and exits when this process was started in the
// given role, and returns at once otherwise. Open receives a temporary folder
// that is removed at the end.
func RunChild(role string, open func(dir string) Service) {
	if os.Getenv(roleVariable) != role {
		return
	}
	// What the child starts is no keeper.
	_ = os.Unsetenv(roleVariable)
	if err := serve(role, open); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serve(role string, open func(dir string) Service) (err error) {
	conn := &childConn{in: os.Stdin, out: os.Stdout, ended: make(chan struct{})}
	// A library that prints must not break the protocol.
	os.Stdout = os.Stderr

	// The reply or the log line that a call still writes after the parent has
	// died must fail, not end the child before it has stopped the server.
	// Caught, not ignored: the server would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)

	dir, err := os.MkdirTemp("", "outbox-relay-"+role+"-")
	if err != nil {
		return fmt.Errorf("keeper %q: make temporary folder: %w", role, err)
	}
	defer func() {
		if rmErr := os.RemoveAll(dir); err == nil && rmErr != nil {
			err = fmt.Errorf("keeper %q: remove temporary folder: %w", role, rmErr)
		}
	}()

	service := open(dir)
	server := rpc.NewServer()
	if err := server.RegisterName(serviceName, service); err != nil {
		return fmt.Errorf("keeper %q: %w", role, err)
	}
	go server.ServeConn(conn)

	// A signal sent to the child itself must not leave the server behind.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	select {
	case <-conn.ended:
	case <-ctx.Done():
	}

	closed := make(chan error, 1)
	go func() { closed <- service.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			return fmt.Errorf("keeper %q: close: %w", role, err)
		}
		return nil
	case <-time.After(closeTimeout):
		return fmt.Errorf("keeper %q: close: not done after %s", role, closeTimeout)
	}
}

// childConn is the child's end of the pipes. It tells when the parent is gone
// even while a call is under way, which rpc.Server would wait for.
type childConn struct {
	in    io.Reader
	out   io.WriteCloser
	once  sync.Once
	ended chan struct{}
}

func (c *childConn) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	if err != nil {
		c.once.Do(func() { close(c.ended) })
	}
	return n, err
}

func (c *childConn) Write(p []byte) (int, error) { return c.out.Write(p) }

// Close does nothing: the pipe ends with the process, after the server has
// stopped, so that a parent which waits for the end of the output waits for
// that too.
func (c *childConn) Close() error { return nil }

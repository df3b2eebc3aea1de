// Package keeper runs a server in a child process of this program, so that the
// server ends when the program does, however the program dies.
//
// The child is the program itself, started again with a role in its
// environment. It answers calls on its standard input and output and closes
// its server once the input ends: the kernel closes that pipe when the parent
// exits, panics or is killed with SIGKILL. A death signal set by the parent
// would not do, since the kernel ties it to the thread that started the child
// and the Go runtime ends threads as it likes.
package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// roleVariable tells a process which service it keeps.
const roleVariable = "OUTBOX_RELAY_KEEPER_ROLE"

// Keeper is the parent's end of a child process. Its methods may be called
// from any goroutine.
type Keeper struct {
	role   string
	cmd    *exec.Cmd
	client *rpc.Client
	tail   *tail
	close  func() error
}

// Start starts this program again in the given role and returns once the
// process runs. The child's standard error is copied to log, which may be nil.
//
// It fails when the process cannot be started, and when this process is itself
// a child whose role nobody took: then the program's main (or TestMain) does
// not call the RunChild of the package that starts the server.
func Start(role string, log io.Writer) (*Keeper, error) {
	if taken := os.Getenv(roleVariable); taken != "" {
		return nil, fmt.Errorf("start keeper %q: this process is the unserved keeper %q; call RunChild first thing in main or TestMain", role, taken)
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start keeper %q: find this program's file: %w", role, err)
	}
	if log == nil {
		log = io.Discard
	}

	k := &Keeper{role: role, tail: &tail{next: log}}
	k.cmd = exec.Command(exe)
	k.cmd.Env = append(os.Environ(), roleVariable+"="+role)
	k.cmd.Stderr = k.tail
	// In a session of its own: Ctrl-C in a terminal reaches the whole
	// foreground group, and must not take the server from under a program
	// that is still finishing its work on it.
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdin, err := k.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start keeper %q: %w", role, err)
	}
	stdout, err := k.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start keeper %q: %w", role, err)
	}
	if err := k.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start keeper %q: %w", role, err)
	}
	k.client = rpc.NewClient(parentConn{stdout, stdin})
	k.close = sync.OnceValue(k.closeAndWait)
	return k, nil
}

// Call runs a method of the child's service, such as "Start", and waits for its
// reply. An error of the method comes back as its text. When ctx ends first,
// Call returns its error at once; the method still runs to its end in the
// child, so the caller should Close the keeper.
func (k *Keeper) Call(ctx context.Context, method string, args, reply any) error {
	call := k.client.Go(serviceName+"."+method, args, reply, make(chan *rpc.Call, 1))
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-call.Done:
	}
	if _, fromService := errors.AsType[rpc.ServerError](call.Error); call.Error != nil && !fromService {
		k.awaitLastOutput()
		return fmt.Errorf("keeper %q ended unexpectedly (%w); its last output:\n%s", k.role, call.Error, k.Tail())
	}
	return call.Error
}

// Tail returns the last output of the child, at most 8 KiB.
func (k *Keeper) Tail() string { return k.tail.String() }

// Close ends the child and waits until its server has stopped and its files are
// gone. It returns the error of that stop, on every call the same.
func (k *Keeper) Close() error { return k.close() }

func (k *Keeper) closeAndWait() error {
	// Closing our end of the pipe is what tells the child to stop. The error
	// only says that the child is gone already, which Wait reports better.
	_ = k.client.Close()
	if err := k.cmd.Wait(); err != nil {
		return fmt.Errorf("stop keeper %q: %w; its last output:\n%s", k.role, err, k.Tail())
	}
	return nil
}

// awaitLastOutput waits until a child whose pipe broke has ended, since its last
// output may be on the way still. The wait is bounded: what runs in the role
// could also be a program that forgot to call RunChild.
func (k *Keeper) awaitLastOutput() {
	closed := make(chan struct{})
	go func() {
		_ = k.Close() // the caller's own Close returns the same error
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(5 * time.Second):
	}
}

// parentConn joins the child's output and input. Closing it closes the input
// alone: the output is read until the child has ended.
type parentConn struct {
	io.Reader
	io.WriteCloser
}

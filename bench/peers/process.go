package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/outbox-relay/outbox-relay/internal/keeper"
)

const (
	processRole = "peer"

	// stopTimeout bounds an orderly stop, after which a process is killed.
	stopTimeout = 30 * time.Second
)

// Command describes a contender's process.
type Command struct {
	Args, Env []string
	Dir       string
	// Log is the file that its output is appended to.
	Log string
}

// process is a running contender. It ends when this program does, also when
// that is killed, and it is a process of its own, so that memory and CPU time
// are its own.
type process struct {
	keeper *keeper.Keeper
	pid    int
	stop   func() error
	// ended is closed once the process is gone, and state tells how.
	ended chan struct{}
	state string
}

// startProcess starts the command and returns once it runs.
func startProcess(ctx context.Context, c Command) (*process, error) {
	k, err := keeper.Start(processRole, nil)
	if err != nil {
		return nil, err
	}
	p := &process{keeper: k, ended: make(chan struct{})}
	if err := k.Call(ctx, "Start", c, &p.pid); err != nil {
		_ = k.Close() // it only has nothing to stop
		return nil, fmt.Errorf("start %s: %w", c.Args[0], err)
	}
	go func() {
		defer close(p.ended)
		// A broken call means that the keeper, and the process with it, is gone.
		_ = k.Call(context.Background(), "Wait", struct{}{}, &p.state)
	}()
	p.stop = sync.OnceValue(p.stopAndWait)
	return p, nil
}

// Stop ends the process in its orderly way. It fails when the process had ended
// before.
func (p *process) Stop() error { return p.stop() }

func (p *process) stopAndWait() error {
	var died error
	select {
	case <-p.ended:
		died = p.died()
	default:
	}
	if err := p.keeper.Close(); err != nil {
		return err
	}
	<-p.ended
	return died
}

func (p *process) died() error {
	return fmt.Errorf("process %d ended by itself: %s", p.pid, p.state)
}

// current serves the peers that embed a process.
func (p *process) current() *process { return p }

// watch returns a context that ends with the process, and says so in its cause.
func (p *process) watch(ctx context.Context) (context.Context, context.CancelFunc) {
	watched, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-p.ended:
			cancel(p.died())
		case <-watched.Done():
		}
	}()
	return watched, func() { cancel(nil) }
}

// runProcessChild serves startProcess, in the child that it starts.
func runProcessChild() {
	keeper.RunChild(processRole, func(string) keeper.Service { return &processService{} })
}

// processService runs in the child, and is called by its parent.
type processService struct {
	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{}
}

// Start runs the command.
func (s *processService) Start(c Command, pid *int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	log, err := os.OpenFile(c.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(c.Args[0], c.Args[1:]...)
	cmd.Env, cmd.Dir = c.Env, c.Dir
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // that it ended is what counts
		close(exited)
	}()
	s.cmd, s.exited = cmd, exited
	*pid = cmd.Process.Pid
	return nil
}

// Wait returns once the command has ended, with how it did.
func (s *processService) Wait(_ struct{}, state *string) error {
	s.mu.Lock()
	cmd, exited := s.cmd, s.exited
	s.mu.Unlock()
	if cmd == nil {
		return errors.New("nothing was started")
	}
	<-exited
	*state = cmd.ProcessState.String()
	return nil
}

// Close ends the command.
func (s *processService) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return nil
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may be gone
	select {
	case <-s.exited:
	case <-time.After(stopTimeout):
		_ = s.cmd.Process.Kill()
		<-s.exited
	}
	return nil
}

package main

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// built is the binary that the tests of whole processes share.
var built struct {
	mu    sync.Mutex
	users int
	dir   string
}

// buildRelay builds the binary for startProcess. Tests call it before
// t.Parallel: then all of them are its users before the first one ends, and one
// build serves them all until the last one removes it.
func buildRelay(t *testing.T) {
	t.Helper()
	built.mu.Lock()
	defer built.mu.Unlock()
	if built.users == 0 {
		dir, err := os.MkdirTemp("", "relay-test-") //nolint:usetesting // it outlives this test
		if err != nil {
			t.Fatal(err)
		}
		// What the version control knows about the folder does not matter here.
		cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", filepath.Join(dir, "relay"), ".")
		if out, err := cmd.CombinedOutput(); err != nil {
			_ = os.RemoveAll(dir)
			t.Fatalf("build the relay: %v\n%s", err, out)
		}
		built.dir = dir
	}
	built.users++
	t.Cleanup(func() {
		built.mu.Lock()
		defer built.mu.Unlock()
		if built.users--; built.users == 0 {
			if err := os.RemoveAll(built.dir); err != nil {
				t.Error(err)
			}
		}
	})
}

// process is the built binary carrying out "relay run".
type process struct {
	*runningRelay
	cmd   *exec.Cmd
	ended chan struct{} // closed once it is gone
}

// startProcess starts the binary with no environment but env, and returns once
// it has written its first line. It is killed when the test ends.
func startProcess(t *testing.T, env variables) *process {
	t.Helper()
	p := &process{
		runningRelay: &runningRelay{command: &command{&testenv.Output{}, &testenv.Output{}, make(chan int, 1)}},
		cmd:          exec.Command(filepath.Join(built.dir, "relay"), "run"),
		ended:        make(chan struct{}),
	}
	p.cmd.Env = env.list()
	p.cmd.Stdout, p.cmd.Stderr = p.stdout, p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended stands in ProcessState
		p.code <- p.cmd.ProcessState.ExitCode()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // gone already, mostly
		<-p.ended
		if t.Failed() {
			t.Logf("log of process %d:\n%s", p.cmd.Process.Pid, p.stderr)
		}
	})
	testenv.Eventually(t, "the process says that it starts", func() bool {
		p.addr, _ = p.logged("relay starting")["http"].(string)
		return p.addr != ""
	})
	return p
}

// signal sends a signal to the process, and to no other.
func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatalf("signal %s to process %d: %v", s, p.cmd.Process.Pid, err)
	}
}

// end waits for the end of the process.
func (p *process) end(t *testing.T) result {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		t.Fatalf("process %d did not end", p.cmd.Process.Pid)
	}
	return p.wait()
}

// kill ends the process with SIGKILL.
func (p *process) kill(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGKILL)
	p.end(t)
}

// terminate ends the process with SIGTERM, which it has to follow in an orderly
// way.
func (p *process) terminate(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGTERM)
	p.end(t).wants(t, exitOK, "relay stopped")
}

// ready waits until both servers have answered the process.
func (p *process) ready(t *testing.T) {
	t.Helper()
	p.probe(t, "/readyz", 200)
}

// applicationName returns the environment's database URL with a name for its
// sessions, by which a test finds them in pg_stat_activity.
func (v variables) applicationName(t *testing.T, name string) string {
	t.Helper()
	return v.edited(t, func(u *url.URL) {
		query := u.Query()
		query.Set("application_name", name)
		u.RawQuery = query.Encode()
	})
}

// rounds returns how often a test repeats what it does: the number in the
// variable, or usual.
func rounds(t *testing.T, variable string, usual int) int {
	t.Helper()
	value := os.Getenv(variable)
	if value == "" {
		return usual
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q: must be a number above 0", variable, value)
	}
	return n
}

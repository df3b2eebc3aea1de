package keeper_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outbox-relay/outbox-relay/internal/keeper"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

const role = "test"

func TestMain(m *testing.M) {
	keeper.RunChild(role, func(dir string) keeper.Service { return &service{dir} })
	testenv.Main(m)
}

// service is what the tests keep: it writes a file into its folder.
type service struct{ dir string }

func (s *service) Write(content string, path *string) error {
	*path = filepath.Join(s.dir, "file")
	return os.WriteFile(*path, []byte(content), 0o600)
}

func (s *service) Refuse(struct{}, *string) error { return errors.New("refused") }

func (s *service) Hang(struct{}, *string) error { select {} }

func (s *service) Die(struct{}, *string) error {
	fmt.Fprintln(os.Stderr, "last words")
	_ = os.RemoveAll(s.dir) // which the keeper does at a regular end
	os.Exit(3)
	return nil
}

func (s *service) Close() error { return nil }

func start(t *testing.T) *keeper.Keeper {
	t.Helper()
	k, err := keeper.Start(role, nil)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestCallsAreAnsweredAndTheFolderIsRemovedAtTheEnd(t *testing.T) {
	t.Parallel()
	k := start(t)
	var path string
	if err := k.Call(t.Context(), "Write", "hello", &path); err != nil {
		t.Fatal(err)
	}
	if content, err := os.ReadFile(path); err != nil || string(content) != "hello" {
		t.Errorf("file holds %q, %v", content, err)
	}
	if err := k.Call(t.Context(), "Refuse", struct{}{}, &path); err == nil || err.Error() != "refused" {
		t.Errorf("got %v, want the method's own error", err)
	}
	for range 2 { // the second call finds it done
		if err := k.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Dir(path)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("temporary folder is still there: %v", err)
	}
	if err := k.Call(t.Context(), "Refuse", struct{}{}, &path); err == nil {
		t.Error("a call after Close succeeded")
	}
}

func TestDeathOfTheChildIsReportedWithItsLastOutput(t *testing.T) {
	t.Parallel()
	k := start(t)
	for name, err := range map[string]error{
		"Call":  k.Call(t.Context(), "Die", struct{}{}, new(string)),
		"Close": k.Close(),
	} {
		if err == nil || !strings.Contains(err.Error(), "last words") {
			t.Errorf("%s: error %v does not hold the last words", name, err)
		}
	}
}

func TestCallEndsWithItsContextWhileTheMethodHangs(t *testing.T) {
	t.Parallel()
	k := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	hung := make(chan error)
	go func() { hung <- k.Call(ctx, "Hang", struct{}{}, new(string)) }()
	cancel()
	if err := <-hung; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	if err := k.Close(); err != nil {
		t.Error(err)
	}
}

func TestRoleThatNobodyTakesIsAnErrorAndNoEndlessChainOfChildren(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// This test again, in a process whose role TestMain does not serve.
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestCallsAreAnswered", "-test.count=1")
	cmd.Env = append(os.Environ(), "OUTBOX_RELAY_KEEPER_ROLE=another")
	out, err := cmd.CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("call RunChild first")) {
		t.Errorf("got %v, %s", err, out)
	}
}

func TestLockIsHeldByOneAtATime(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := keeper.Lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := keeper.Lock(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("second lock: got %v, want %v", err, context.DeadlineExceeded)
	}
	unlock()
	unlock, err = keeper.Lock(t.Context(), path)
	if err != nil {
		t.Fatalf("after the first was given back: %v", err)
	}
	unlock()
}

func TestPortInUseIsNotFree(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if port := l.Addr().(*net.TCPAddr).Port; keeper.PortFree(port) {
		t.Errorf("port %d counts as free while it is in use", port)
	}
}

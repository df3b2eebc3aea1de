package main

import (
	"context"
	"maps"
	"strings"
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// variables is an environment.
type variables map[string]string

// with returns a copy with more variables, or others.
func (v variables) with(name, value string) variables {
	copied := maps.Clone(v)
	copied[name] = value
	return copied
}

func (v variables) list() []string {
	var list []string
	for name, value := range v {
		list = append(list, name+"="+value)
	}
	return list
}

// result is what a command line came to.
type result struct {
	code           int
	stdout, stderr string
}

// relayCommand runs a command line to its end.
func relayCommand(t *testing.T, env variables, args ...string) result {
	t.Helper()
	running := startCommand(t.Context(), env, args...)
	r := running.wait()
	for _, sign := range []string{"goroutine ", "panic:", ".go:"} {
		if strings.Contains(r.stderr, sign) {
			t.Errorf("stderr looks like a stack trace:\n%s", r.stderr)
		}
	}
	return r
}

// command is a command line that is under way.
type command struct {
	stdout, stderr *testenv.Output
	code           chan int
}

func startCommand(ctx context.Context, env variables, args ...string) *command {
	c := &command{stdout: &testenv.Output{}, stderr: &testenv.Output{}, code: make(chan int, 1)}
	go func() { c.code <- run(ctx, args, env.list(), strings.NewReader(""), c.stdout, c.stderr) }()
	return c
}

func (c *command) wait() result {
	code := <-c.code
	return result{code, c.stdout.String(), c.stderr.String()}
}

// wants fails the test unless the command ended with the code and said, on
// either stream, each of the texts.
func (r result) wants(t *testing.T, code int, texts ...string) {
	t.Helper()
	all := r.stdout + r.stderr
	if r.code != code {
		t.Errorf("exit code %d, want %d", r.code, code)
	}
	for _, text := range texts {
		if !strings.Contains(all, text) {
			t.Errorf("the output lacks %q", text)
		}
	}
	if t.Failed() {
		t.Logf("output:\n%s", all)
	}
}

package main

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

func shell(t *testing.T, script string) *process {
	t.Helper()
	dir := t.TempDir()
	p, err := startProcess(t.Context(), Command{Args: []string{"/bin/sh", "-c", script}, Dir: dir, Log: filepath.Join(dir, "log")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Stop() })
	return p
}

func TestStopEndsTheProcess(t *testing.T) {
	t.Parallel()
	p := shell(t, "exec tail -f /dev/null")
	ctx, cancel := p.watch(t.Context())
	defer cancel()
	for range 2 { // the second call finds it done
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Kill(p.pid, 0); err == nil {
		t.Errorf("process %d is still there", p.pid)
	}
	<-ctx.Done()
}

func TestProcessThatEndsByItselfIsReported(t *testing.T) {
	t.Parallel()
	p := shell(t, "exit 7")
	ctx, cancel := p.watch(t.Context())
	defer cancel()
	err := await(ctx, stallTimeout, "what never comes", func() (bool, error) { return false, nil })
	for _, err := range []error{err, p.Stop()} {
		if err == nil || !strings.Contains(err.Error(), "exit status 7") {
			t.Errorf("error %v does not tell how it ended", err)
		}
	}
}

func TestMissingProgramIsAnError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := startProcess(t.Context(), Command{Args: []string{"/no/such/program"}, Dir: dir, Log: filepath.Join(dir, "log")})
	if err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("error %v does not name the program", err)
	}
}

func TestMeterReadsOnlyWhatItHas(t *testing.T) {
	t.Parallel()
	if used, err := (meter{}).read(); err != nil || used != (usage{}) {
		t.Errorf("got %+v, %v", used, err)
	}
	p := shell(t, "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; exec tail -f /dev/null")
	testenv.Eventually(t, "its CPU time is seen", func() bool {
		used, err := meter{peer: p}.read()
		return err == nil && used.Peer > 0 && used.Postgres == 0
	})
}

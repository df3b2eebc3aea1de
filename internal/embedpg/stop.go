package embedpg

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// stopTimeout bounds the fast shutdown, which ends with a checkpoint.
const stopTimeout = time.Minute

// down stops whatever server runs on the data: also one that the library gave
// up on while it was starting, which it does not know how to stop.
func (s *service) down() error {
	pid, err := s.readPID()
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if s.gone(pid) {
		return nil
	}
	// SIGINT asks Postgres for a fast shutdown: sessions are ended, nothing
	// is lost.
	if err := syscall.Kill(pid, syscall.SIGINT); err != nil {
		return fmt.Errorf("stop server: signal process %d: %w", pid, err)
	}
	deadline := time.Now().Add(stopTimeout)
	for !s.gone(pid) {
		if time.Now().After(deadline) {
			// SIGQUIT ends it without a checkpoint.
			_ = syscall.Kill(pid, syscall.SIGQUIT)
			return fmt.Errorf("stop server: process %d was still there after %s", pid, stopTimeout)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

// gone reports whether the server has ended. A server removes its pid file as
// the last thing; one that was killed leaves the file.
func (s *service) gone(pid int) bool {
	if _, err := s.readPID(); errors.Is(err, os.ErrNotExist) {
		return true
	}
	return !alive(pid)
}

// alive reports whether the process runs. In a container nobody may collect the
// dead, so that they stay in the process table, which Linux marks with a Z after
// the name in brackets.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true // not Linux
	}
	afterName := stat[bytes.LastIndexByte(stat, ')')+1:]
	return !bytes.HasPrefix(afterName, []byte(" Z"))
}

// readPID reads the first line of the file that the server keeps while it runs.
func (s *service) readPID() (int, error) {
	content, err := os.ReadFile(filepath.Join(s.dir, "data", "postmaster.pid"))
	if err != nil {
		return 0, fmt.Errorf("read process id of server: %w", err)
	}
	first, _, _ := strings.Cut(string(content), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil {
		return 0, fmt.Errorf("read process id of server: %w", err)
	}
	return pid, nil
}

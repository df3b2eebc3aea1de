package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// processState returns the letter by which Linux calls what a process does.
func processState(t *testing.T, pid int) string {
	t.Helper()
	return processStat(t, pid)[0]
}

// cpuTime returns what a process has used so far, of user and system time.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	const tick = 10 * time.Millisecond // USER_HZ, the same everywhere
	var ticks int
	for _, field := range processStat(t, pid)[11:13] {
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * tick
}

// processStat returns the fields of /proc/PID/stat from the state on. The name
// before it may hold anything.
func processStat(t *testing.T, pid int) []string {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
}

// residentMemory returns what a process has in memory, in kB, now (VmRSS) or at
// most so far (VmHWM).
func residentMemory(t *testing.T, pid int, field string) (kB int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if value, found := strings.CutPrefix(line, field+":"); found {
			if _, err := fmt.Sscanf(value, "%d kB", &kB); err != nil {
				t.Fatal(err)
			}
		}
	}
	return kB
}

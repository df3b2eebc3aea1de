// Package procfs reads from /proc what processes use, for tests and benchmarks.
// Elsewhere than on Linux all of it fails.
package procfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Tick is the unit of CPU time in /proc, on every Linux of today.
const Tick = 10 * time.Millisecond

// Stat is what is used of /proc/PID/stat.
type Stat struct {
	// Name is that of the program.
	Name string
	// State is a letter, such as T for a process that is stopped.
	State  string
	Parent int
	// Own is the CPU time of the process, user and system, and Ended that of
	// its children that have ended.
	Own, Ended time.Duration
}

// ReadStat fails when there is no such process.
func ReadStat(pid int) (Stat, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Stat{}, fmt.Errorf("read the state of a process: %w", err)
	}
	return parseStat(string(content))
}

// parseStat reads /proc/PID/stat. The name of the program, in brackets, may
// itself hold spaces and brackets.
func parseStat(content string) (s Stat, err error) {
	open, closed := strings.IndexByte(content, '('), strings.LastIndexByte(content, ')')
	fields := strings.Fields(content[closed+1:])
	if open < 0 || closed < open || len(fields) < 15 {
		return Stat{}, fmt.Errorf("read the state of a process: unexpected content %q", content)
	}
	// The state is field 3 of proc_pid_stat(5) and the first here.
	var numbers [5]int
	for i, field := range []int{4, 14, 15, 16, 17} {
		number, convErr := strconv.Atoi(fields[field-3])
		err = errors.Join(err, convErr)
		numbers[i] = number
	}
	return Stat{
		Name:   content[open+1 : closed],
		State:  fields[0],
		Parent: numbers[0],
		Own:    time.Duration(numbers[1]+numbers[2]) * Tick,
		Ended:  time.Duration(numbers[3]+numbers[4]) * Tick,
	}, err
}

// Memory returns the resident bytes of a process, and the most it ever had.
func Memory(pid int) (resident, peak int64, err error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, fmt.Errorf("read the memory of a process: %w", err)
	}
	resident, err = parseStatus(string(content), "VmRSS")
	if err != nil {
		return 0, 0, err
	}
	peak, err = parseStatus(string(content), "VmHWM")
	return resident, peak, err
}

// parseStatus returns the bytes of a field of /proc/PID/status, such as VmHWM.
func parseStatus(content, field string) (int64, error) {
	for line := range strings.Lines(content) {
		value, ok := strings.CutPrefix(line, field+":")
		if !ok {
			continue
		}
		kilobytes, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read %s of a process: %w", field, err)
		}
		return kilobytes << 10, nil
	}
	return 0, fmt.Errorf("read %s of a process: it is not there", field)
}

// FamilyTime returns the CPU time of a process and its children, those that have
// ended included. It fits Postgres, whose sessions are children of one process.
func FamilyTime(pid int) (time.Duration, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	var total time.Duration
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended since, and counts with its parent
		}
		if s, err := parseStat(string(content)); err == nil && s.Parent == pid {
			total += s.Own + s.Ended
		}
	}
	s, err := ReadStat(pid)
	return total + s.Own + s.Ended, err
}

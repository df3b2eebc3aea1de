package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of CPU time in /proc, on every Linux of today.
const tick = 10 * time.Millisecond

// stat is what is used of /proc/PID/stat.
type stat struct {
	parent int
	// own is the CPU time of the process, ended that of its children that
	// have ended.
	own, ended time.Duration
}

// parseStat reads /proc/PID/stat. The name of the program, in brackets, may
// itself hold spaces and brackets.
func parseStat(content string) (s stat, err error) {
	bracket := strings.LastIndexByte(content, ')')
	fields := strings.Fields(content[bracket+1:])
	if bracket < 0 || len(fields) < 15 {
		return stat{}, fmt.Errorf("read the state of a process: unexpected content %q", content)
	}
	// The state is field 3 of proc_pid_stat(5) and the first here.
	var numbers [5]int
	for i, field := range []int{4, 14, 15, 16, 17} {
		number, convErr := strconv.Atoi(fields[field-3])
		err = errors.Join(err, convErr)
		numbers[i] = number
	}
	return stat{
		parent: numbers[0],
		own:    time.Duration(numbers[1]+numbers[2]) * tick,
		ended:  time.Duration(numbers[3]+numbers[4]) * tick,
	}, err
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

func readStat(pid int) (stat, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, fmt.Errorf("read the CPU time of a process: %w", err)
	}
	return parseStat(string(content))
}

// memory returns the resident bytes of a process, and the most it ever had.
func memory(pid int) (resident, peak int64, err error) {
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

// familyTime returns the CPU time of a process and its children, those that have
// ended included. It fits Postgres, whose sessions are children of one process.
func familyTime(pid int) (time.Duration, error) {
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
		if s, err := parseStat(string(content)); err == nil && s.parent == pid {
			total += s.own + s.ended
		}
	}
	s, err := readStat(pid)
	return total + s.own + s.ended, err
}

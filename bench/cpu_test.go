package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// clockTick is the unit of CPU times in /proc, on every platform that has it.
const clockTick = time.Second / 100

// cpuMeter measures what share of a core some processes and their children use.
type cpuMeter struct {
	pids  []int
	began time.Time
	used  []time.Duration
}

func newCPUMeter(pids ...int) *cpuMeter { return &cpuMeter{pids: pids} }

func (m *cpuMeter) start() { m.began, m.used = time.Now(), m.read() }

// stop returns the percentages since start, which has to be over. One that
// cannot be known is negative.
func (m *cpuMeter) stop() []float64 {
	now, elapsed := m.read(), time.Since(m.began)
	shares := make([]float64, len(m.pids))
	for i := range shares {
		if now[i] < 0 || m.used[i] < 0 {
			shares[i] = -1
			continue
		}
		shares[i] = 100 * float64(now[i]-m.used[i]) / float64(elapsed)
	}
	return shares
}

func (m *cpuMeter) read() []time.Duration {
	used := make([]time.Duration, len(m.pids))
	for i, pid := range m.pids {
		used[i] = cpuOfTree(pid)
	}
	return used
}

// procStat is what /proc/<pid>/stat says about a process.
type procStat struct {
	name   string
	parent int
	own    time.Duration // CPU time, user and system
	waited time.Duration // that of its children that have ended
}

func readProcStat(pid int) (procStat, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procStat{}, err
	}
	// The name stands in parentheses and may contain anything.
	open, closed := strings.IndexByte(string(text), '('), strings.LastIndexByte(string(text), ')')
	if open < 0 || closed < open {
		return procStat{}, fmt.Errorf("/proc/%d/stat has an unknown form", pid)
	}
	fields := strings.Fields(string(text[closed+1:]))
	number := func(field int) int { // counted from 1 with the name as 2, as in proc(5)
		n, _ := strconv.Atoi(fields[field-3]) // the kernel writes nothing but numbers here
		return n
	}
	return procStat{
		name:   string(text[open+1 : closed]),
		parent: number(4),
		own:    time.Duration(number(14)+number(15)) * clockTick,
		waited: time.Duration(number(16)+number(17)) * clockTick,
	}, nil
}

// postmaster returns the process id of the server's main process, or 0 if the
// server, or this machine, does not show it.
func (o *outbox) postmaster(b *testing.B) int {
	b.Helper()
	var backend int
	conn, err := o.pool.Acquire(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Release()
	if err := conn.QueryRow(b.Context(), "SELECT pg_backend_pid()").Scan(&backend); err != nil {
		b.Fatal(err)
	}
	// A server on another machine may have given out a number that means
	// something else here.
	stat, err := readProcStat(backend)
	if err != nil || !strings.HasPrefix(stat.name, "postgres") {
		return 0
	}
	return stat.parent
}

// cpuOfTree adds up a process, its children, and those that have ended. It is
// negative if /proc does not show the process.
func cpuOfTree(pid int) time.Duration {
	root, err := readProcStat(pid)
	if err != nil {
		return -1
	}
	total := root.own + root.waited
	all, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is a valid one
	for _, path := range all {
		child, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			continue
		}
		// One that has ended meanwhile is not there any more.
		if stat, err := readProcStat(child); err == nil && stat.parent == pid {
			total += stat.own + stat.waited
		}
	}
	return total
}

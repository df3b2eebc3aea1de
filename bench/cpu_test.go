package bench

import (
	"strings"
	"testing"
	"time"

	"github.com/outbox-relay/outbox-relay/internal/procfs"
)

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
		var err error
		if used[i], err = procfs.FamilyTime(pid); err != nil {
			used[i] = -1
		}
	}
	return used
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
	stat, err := procfs.ReadStat(backend)
	if err != nil || !strings.HasPrefix(stat.Name, "postgres") {
		return 0
	}
	return stat.Parent
}

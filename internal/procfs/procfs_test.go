package procfs

import (
	"os"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		content string
		want    Stat
		ok      bool
	}{
		"times are in ticks": {
			"7 (java) S 3 7 7 0 -1 4194560 1 2 3 4 150 50 7 3 20 0 1 0 99 1 1",
			Stat{Name: "java", State: "S", Parent: 3, Own: 2 * time.Second, Ended: 100 * time.Millisecond},
			true,
		},
		"a name may hold brackets and spaces": {
			"7 (a) R 9 (b) S 3 7 7 0 -1 4194560 1 2 3 4 1 0 0 0 20 0 1 0 99 1 1",
			Stat{Name: "a) R 9 (b", State: "S", Parent: 3, Own: Tick},
			true,
		},
		"an end too soon is an error": {"7 (java) S 3 7 7", Stat{}, false},
		"no number is an error":       {"7 (java) S x 7 7 0 -1 4194560 1 2 3 4 1 0 0 0 20", Stat{}, false},
		"nothing is an error":         {"", Stat{}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parseStat(test.content)
			if (err == nil) != test.ok || test.ok && got != test.want {
				t.Errorf("got %+v, %v; want %+v", got, err, test.want)
			}
		})
	}
}

func TestParseStatus(t *testing.T) {
	t.Parallel()
	const content = "Name:\trelay\nVmHWM:\t   33004 kB\nVmRSS:\t  1024 kB\nThreads:\tmany\n"
	if got, err := parseStatus(content, "VmRSS"); err != nil || got != 1<<20 {
		t.Errorf("VmRSS: got %d, %v", got, err)
	}
	for _, field := range []string{"Vm", "Threads"} {
		if got, err := parseStatus(content, field); err == nil {
			t.Errorf("%s: got %d and no error", field, got)
		}
	}
}

func TestProcfsOfThisProcessIsUnderstood(t *testing.T) {
	t.Parallel()
	resident, peak, err := Memory(os.Getpid())
	if err != nil || resident <= 0 || peak < resident {
		t.Errorf("memory: %d resident, at most %d: %v", resident, peak, err)
	}
	own, err := ReadStat(os.Getpid())
	if err != nil || own.Parent != os.Getppid() {
		t.Errorf("state: %+v, %v; the parent is %d", own, err, os.Getppid())
	}
	family, err := FamilyTime(os.Getpid())
	if err != nil || family < own.Own {
		t.Errorf("CPU time with children %s, alone %s: %v", family, own.Own, err)
	}
}

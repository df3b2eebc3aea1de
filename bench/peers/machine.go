package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
)

// about is where the figures come from.
type about struct {
	Machine, Postgres, Kafka, Go string
	// Foreign tells that Postgres was not started here, so that its CPU time is
	// not known.
	Foreign bool
}

func describe(ctx context.Context, s *servers) (about, error) {
	version, err := s.setting(ctx, "server_version")
	if err != nil {
		return about{}, err
	}
	fsync, err := s.setting(ctx, "fsync")
	if err != nil {
		return about{}, err
	}
	a := about{
		Machine:  machine(),
		Postgres: fmt.Sprintf("%s, fsync=%s", version, fsync),
		Kafka:    "that of KAFKA_BROKERS",
		Go:       runtime.Version(),
		Foreign:  s.postgres == 0,
	}
	if s.postgres != 0 {
		for _, name := range []string{"wal_level", "shared_buffers", "max_wal_size"} {
			a.Postgres += fmt.Sprintf(", %s=%s", name, postgresParameters[name])
		}
	}
	if os.Getenv("KAFKA_BROKERS") == "" {
		a.Kafka = "4.4.0, one node in KRaft mode, -Xmx512m"
	}
	return a, nil
}

// machine tells the processor, how many of its cores there are, and the memory.
func machine() string {
	cpu, memory := "unknown processor", ""
	if content, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		cpu = procField(string(content), "model name", cpu)
	}
	if content, err := os.ReadFile("/proc/meminfo"); err == nil {
		var kilobytes int64
		if _, err := fmt.Sscanf(procField(string(content), "MemTotal", ""), "%d kB", &kilobytes); err == nil {
			memory = fmt.Sprintf(", %d GB of memory", kilobytes>>20)
		}
	}
	return fmt.Sprintf("%d cores (%s)%s, %s", runtime.NumCPU(), cpu, memory, runtime.GOOS)
}

// procField returns the first value of a field in a file of /proc.
func procField(content, field, fallback string) string {
	for line := range strings.Lines(content) {
		name, value, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(name) == field {
			return strings.TrimSpace(value)
		}
	}
	return fallback
}

package bench

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// process is "relay run" in a process of its own, whose CPU time is the relay's
// alone.
type process struct {
	cmd  *exec.Cmd
	log  *testenv.Output
	stop func() // in order; again does nothing
}

// buildRelay builds the binary and returns its path.
func buildRelay(b *testing.B) string {
	b.Helper()
	path := filepath.Join(b.TempDir(), "relay")
	// What the version control knows about the folder does not matter here.
	cmd := exec.CommandContext(b.Context(), "go", "build", "-buildvcs=false", "-o", path, "../cmd/relay")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("build the relay: %v\n%s", err, out)
	}
	return path
}

// process starts the binary on this outbox, with the environment of the
// benchmark and the variables on top, and returns once it listens. It is stopped
// when the benchmark ends.
func (o *outbox) process(b *testing.B, binary string, variables ...string) *process {
	b.Helper()
	p := &process{cmd: exec.Command(binary, "run"), log: &testenv.Output{}}
	p.cmd.Env = append(os.Environ(), append(variables,
		"DATABASE_URL="+o.cfg.DatabaseURL, "RELAY_TABLE="+o.cfg.Table,
		"KAFKA_BROKERS="+strings.Join(o.cfg.Brokers, ","),
		"RELAY_HTTP_ADDR=127.0.0.1:0", "RELAY_LOG_FORMAT=json", "RELAY_LOG_LEVEL=info")...)
	p.cmd.Stderr = p.log
	if err := p.cmd.Start(); err != nil {
		b.Fatalf("start the relay: %v", err)
	}
	p.stop = sync.OnceFunc(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // Wait tells if it is gone
		if err := p.cmd.Wait(); err != nil {
			b.Errorf("the relay ended with %v:\n%s", err, p.log)
		}
	})
	b.Cleanup(p.stop)
	testenv.Eventually(b, "the relay is ready and listens", p.listens)
	return p
}

// listens asks the relay itself, whose first line of log says where.
func (p *process) listens() bool {
	var starting struct{ HTTP string }
	line, _, _ := strings.Cut(p.log.String(), "\n")
	if json.Unmarshal([]byte(line), &starting) != nil || starting.HTTP == "" {
		return false
	}
	response, err := http.Get("http://" + starting.HTTP + "/readyz")
	if err != nil {
		return false
	}
	defer response.Body.Close()
	var health struct {
		ListenerUp bool `json:"listener_up"`
	}
	err = json.NewDecoder(response.Body).Decode(&health)
	return err == nil && response.StatusCode == http.StatusOK && health.ListenerUp
}

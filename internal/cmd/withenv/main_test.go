package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// commandVariable makes the test binary the command itself.
const commandVariable = "WITHENV_TEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(commandVariable) != "" {
		main()
	}
	testenv.Main(m)
}

// withenv returns the command with these arguments, without servers in its
// environment.
func withenv(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, args...)
	cmd.Env = append(os.Environ(), commandVariable+"=1", "DATABASE_URL=", "KAFKA_BROKERS=")
	return cmd
}

func TestExitCodeOfTheCommandIsPassedOn(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		args []string
		code int
		says string
	}{
		"success":                   {[]string{"--", "true"}, 0, ""},
		"a code of the command":     {[]string{"--", "sh", "-c", "exit 7"}, 7, ""},
		"a signal":                  {[]string{"--", "sh", "-c", "kill -9 $$"}, 137, "signal killed"},
		"no such command":           {[]string{"--", "no-such-command"}, 1, "no-such-command"},
		"no command":                {nil, 2, "usage"},
		"no such flag":              {[]string{"-mysql", "true"}, 2, "-mysql"},
		"flags of the command stay": {[]string{"sh", "-c", "exit 3"}, 3, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := withenv(t, test.args...)
			out, _ := cmd.CombinedOutput() // the code is looked at below
			if code := cmd.ProcessState.ExitCode(); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			if !strings.Contains(string(out), test.says) {
				t.Errorf("output %q does not say %q", out, test.says)
			}
		})
	}
}

func TestServerIsNamedToTheCommandAndStopsAfterASignal(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			// The command's own child must get the signal as well.
			cmd := withenv(t, "-postgres", "--", "sh", "-c",
				`trap 'exit 5' INT TERM; echo "$DATABASE_URL"; while :; do sleep 0.1; done`)
			cmd.Stderr = os.Stderr
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			reader := bufio.NewReader(stdout)
			url, err := reader.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			pool := testenv.Pool(t, strings.TrimSpace(url))
			if err := pool.Ping(t.Context()); err != nil {
				t.Fatalf("the server named to the command: %v", err)
			}
			if err := cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			// Ends only once all processes of the command are gone.
			if _, err := io.ReadAll(reader); err != nil {
				t.Error(err)
			}
			_ = cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != 5 {
				t.Errorf("exit code %d, want the command's 5", code)
			}
			if err := pool.Ping(t.Context()); err == nil {
				t.Error("the server still runs")
			}
		})
	}
}

func TestServerThatIsSetIsUsed(t *testing.T) {
	t.Parallel()
	cmd := withenv(t, "-postgres", "-kafka", "--", "sh", "-c", `echo "$DATABASE_URL $KAFKA_BROKERS"`)
	cmd.Env = append(cmd.Env, "DATABASE_URL=postgres://own", "KAFKA_BROKERS=own:9092")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(string(out)); got != "postgres://own own:9092" {
		t.Errorf("the command got %q", got)
	}
}

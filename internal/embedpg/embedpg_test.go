package embedpg_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/internal/embedpg"
	"github.com/outbox-relay/outbox-relay/internal/testenv"
)

// parentVariable makes the test binary a program that starts a server, prints
// where it is, and waits to be killed.
const parentVariable = "EMBEDPG_TEST_PARENT"

// place is what that program prints.
type place struct {
	URL, Data string
}

func TestMain(m *testing.M) {
	embedpg.RunChild()
	if os.Getenv(parentVariable) != "" {
		if err := parent(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testenv.Main(m)
}

func parent() error {
	ctx := context.Background()
	server, err := embedpg.Start(ctx, embedpg.Options{Parameters: map[string]string{"fsync": "off"}})
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, server.URL())
	if err != nil {
		return err
	}
	var data string
	if err := conn.QueryRow(ctx, "SHOW data_directory").Scan(&data); err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(place{server.URL(), data}); err != nil {
		return err
	}
	select {}
}

func TestServerTakesItsParametersAndKeepsItsDataOverRestarts(t *testing.T) {
	t.Parallel()
	server := start(t, embedpg.Options{Parameters: map[string]string{"fsync": "off", "work_mem": "7MB"}})
	url, pid := server.URL(), server.PID()

	var setting string
	query(t, url, "SHOW work_mem", &setting)
	if setting != "7MB" {
		t.Errorf("work_mem is %q, want the parameter 7MB", setting)
	}
	if _, err := testenv.Pool(t, url).Exec(t.Context(), "CREATE TABLE kept AS SELECT 1 AS one"); err != nil {
		t.Fatal(err)
	}

	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if server.URL() != url {
		t.Errorf("URL after the restart is %s, want it unchanged", server.URL())
	}
	if server.PID() == pid {
		t.Error("process id is unchanged: the server was not restarted")
	}
	query(t, url, "SELECT one::text FROM kept", &setting)

	// A server that was killed comes back the same way.
	if err := syscall.Kill(server.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	query(t, url, "SELECT one::text FROM kept", &setting)
}

func TestStopEndsTheServerAndRemovesItsData(t *testing.T) {
	t.Parallel()
	server := start(t, embedpg.Options{Parameters: map[string]string{"fsync": "off"}})
	var data string
	query(t, server.URL(), "SHOW data_directory", &data)
	for range 2 { // the second call finds it done
		if err := server.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	if !gone(t, place{server.URL(), data}) {
		t.Error("server or data are still there after Stop")
	}
}

func TestServerEndsWhenItsParentIsKilledWhileItStarts(t *testing.T) {
	t.Parallel()
	for when, file := range map[string]string{
		"data is being set up": "data",
		"server is starting":   "data/postmaster.pid",
	} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			folder := openFolder(t)
			cmd := startParent(t, nil, "TMPDIR="+folder)
			find := func(file string) []string {
				found, err := filepath.Glob(filepath.Join(folder, "*", file))
				if err != nil {
					t.Error(err)
				}
				return found
			}
			testenv.Eventually(t, when, func() bool { return len(find(file)) > 0 })
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // says only that it was killed

			pid := 0
			testenv.Eventually(t, "data is gone", func() bool {
				for _, path := range find("data/postmaster.pid") {
					content, _ := os.ReadFile(path) // may be gone by now
					if first, _, ok := strings.Cut(string(content), "\n"); ok {
						pid, _ = strconv.Atoi(first)
					}
				}
				left, err := os.ReadDir(folder)
				return err == nil && len(left) == 0
			})
			if pid == 0 {
				t.Fatal("the server never started, so that this shows nothing")
			}
			testenv.Eventually(t, "server is gone", func() bool { return !embedpg.Alive(pid) })
		})
	}
}

func TestServerEndsWhenItsParentIsKilled(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			var p place
			cmd := startParent(t, &p)
			if gone(t, p) {
				t.Fatal("server is gone before its parent was killed")
			}
			if err := cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // says only that it was killed
			testenv.Eventually(t, "server and data are gone", func() bool { return gone(t, p) })
		})
	}
}

func TestStartReportsTheServersOwnWords(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		options embedpg.Options
		want    string
	}{
		"a parameter that does not exist": {
			embedpg.Options{Parameters: map[string]string{"no_such_parameter": "1"}},
			"no_such_parameter",
		},
		"a cache that cannot be made": {
			embedpg.Options{CacheDir: filepath.Join(os.DevNull, "cache")},
			"make cache for Postgres binaries",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, err := embedpg.Start(t.Context(), test.options)
			if err == nil {
				_ = server.Stop()
				t.Fatal("Start succeeded")
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %q does not say %q", err, test.want)
			}
		})
	}
}

func TestFailedDownloadSaysWhatToDo(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1") // where nobody listens
	_, err := embedpg.Start(t.Context(), embedpg.Options{CacheDir: openFolder(t)})
	if err == nil || !strings.Contains(err.Error(), "use a server of your own") {
		t.Errorf("error %v does not say what to do", err)
	}
}

func TestRestartOfAStoppedServerFails(t *testing.T) {
	t.Parallel()
	server := start(t, embedpg.Options{Parameters: map[string]string{"fsync": "off"}})
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context()); err == nil {
		t.Error("Restart succeeded after Stop")
	}
}

// startParent starts the program described at parentVariable and, when asked,
// waits for what it prints.
func startParent(t *testing.T, printed *place, env ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(append(os.Environ(), parentVariable+"=1"), env...)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if printed != nil {
		line, readErr := bufio.NewReader(stdout).ReadBytes('\n')
		if err := json.Unmarshal(line, printed); err != nil {
			t.Fatalf("the parent printed %q (%v): %v", line, readErr, err)
		}
	}
	return cmd
}

// openFolder returns a temporary folder that the account which runs Postgres in
// root's place can use.
func openFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "embedpg-test-") //nolint:usetesting // t.TempDir lies in a folder closed to other accounts
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

func start(t *testing.T, o embedpg.Options) *embedpg.Server {
	t.Helper()
	server, err := embedpg.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// query scans the one value that the statement returns.
func query(t *testing.T, url, statement string, value *string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if err := conn.QueryRow(t.Context(), statement).Scan(value); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// gone reports whether nothing is left of a server.
func gone(t *testing.T, p place) bool {
	t.Helper()
	if _, err := os.Stat(filepath.Dir(p.Data)); !os.IsNotExist(err) {
		return false
	}
	conn, err := pgx.Connect(t.Context(), p.URL)
	if err == nil {
		_ = conn.Close(t.Context())
	}
	return err != nil
}

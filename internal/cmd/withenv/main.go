// Command withenv runs a command with servers of its own:
//
//	withenv [-postgres] [-kafka] [--] command [argument ...]
//
// It starts the servers asked for, names them to the command in DATABASE_URL
// and KAFKA_BROKERS, passes the command's exit code on, and stops the servers.
// One server so serves all the packages of a test run. A variable that is set
// already is left alone, and its server is not started.
//
// SIGINT and SIGTERM are passed to the command and all processes of its group;
// withenv then waits for its end.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/outbox-relay/outbox-relay/internal/embedpg"
	"github.com/outbox-relay/outbox-relay/internal/realkafka"
)

const (
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	embedpg.RunChild()
	realkafka.RunChild()
	code, err := run(os.Args[1:], os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "withenv:", err)
	}
	os.Exit(code)
}

// run returns the exit code of the command, or exitFailure with the reason why
// there is none.
func run(args []string, stderr io.Writer) (code int, err error) {
	flags := flag.NewFlagSet("withenv", flag.ContinueOnError)
	flags.SetOutput(stderr)
	withPostgres := flags.Bool("postgres", false, "start Postgres, for tests: without fsync")
	withKafka := flags.Bool("kafka", false, "start Kafka; needs Java and Maven")
	if err := flags.Parse(args); err != nil {
		return exitUsage, nil // flags has said why
	}
	if flags.NArg() == 0 {
		return exitUsage, errors.New("no command given; usage: withenv [-postgres] [-kafka] [--] command [argument ...]")
	}

	// Caught from here on, so that no server is left behind.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)

	servers := &servers{env: os.Environ()}
	defer func() {
		if stopErr := servers.stop(); stopErr != nil {
			err = errors.Join(err, stopErr)
			code = max(code, exitFailure)
		}
	}()
	if err := startServers(servers, signals, *withPostgres, *withKafka); err != nil {
		return exitFailure, err
	}
	return runCommand(flags.Args(), servers.env, signals)
}

// startServers gives up when a signal comes.
func startServers(s *servers, signals <-chan os.Signal, withPostgres, withKafka bool) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.start(ctx, withPostgres, withKafka) }()
	select {
	case err := <-done:
		return err
	case sig := <-signals:
		cancel()
		return errors.Join(fmt.Errorf("stopped by signal %s", sig), <-done)
	}
}

func runCommand(args, env []string, signals <-chan os.Signal) (int, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// A group of its own: go test does not pass signals on to the test
	// binaries, which would then go on without their servers. And Ctrl-C
	// reaches the command once, through withenv.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return exitFailure, fmt.Errorf("run command: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case sig := <-signals:
			if number, ok := sig.(syscall.Signal); ok {
				// The group may have ended meanwhile.
				_ = syscall.Kill(-cmd.Process.Pid, number)
			}
		case err := <-ended:
			return exitCode(err)
		}
	}
}

// exitCode follows the shell's habit for a command that a signal ended.
func exitCode(err error) (int, error) {
	exit, ok := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil:
		return 0, nil
	case !ok:
		return exitFailure, fmt.Errorf("run command: %w", err)
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), fmt.Errorf("command was ended by signal %s", status.Signal())
	}
	return exit.ExitCode(), nil
}

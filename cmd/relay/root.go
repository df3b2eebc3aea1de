package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"
)

// program is what a command is given of the outside world.
type program struct {
	env            map[string]string
	stdin          io.Reader
	stdout, stderr io.Writer
	// interactive tells that somebody can read a question on stderr and answer
	// it on stdin.
	interactive bool
}

// run carries out the command line args and returns the exit code. It prints
// any error to stderr. ctx ends when the program is asked to stop.
func run(ctx context.Context, args, env []string, stdin io.Reader, stdout, stderr io.Writer) int {
	p := &program{
		env: environment(env), stdin: stdin, stdout: stdout, stderr: stderr,
		interactive: isTerminal(stdin) && isTerminal(stderr),
	}
	return p.execute(ctx, args)
}

func (p *program) execute(ctx context.Context, args []string) int {
	root := p.rootCommand()
	root.SetArgs(args)
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)

	// Whatever fails before a command begins is a fault of the command line.
	began := false
	root.PersistentPreRun = func(*cobra.Command, []string) { began = true }

	err := root.ExecuteContext(ctx)
	if err != nil && !began {
		err = &exitError{exitUsage, &faults{headline: err.Error(), next: `See "relay --help" for the commands.`}}
	}
	return report(p.stderr, err)
}

func (p *program) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "relay",
		Short: "Publish the rows of a Postgres outbox table to Kafka",
		Long: `Publishes the rows of a Postgres outbox table to Kafka, in order for each key
and at least once. Without a command it does what "relay run" does.

Exit codes: 0 all is well, 1 a failure at run time, 2 wrong settings or usage,
3 findings of "relay check", or loss or disorder in "relay demo".`,
		RunE:          func(cmd *cobra.Command, _ []string) error { return p.run(cmd.Context()) },
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(p.runCommand(), p.migrateCommand(), p.checkCommand(), p.parkedCommand(), p.replayCommand(),
		p.demoCommand(), p.versionCommand())
	return root
}

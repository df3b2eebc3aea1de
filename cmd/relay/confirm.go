package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
)

// canConfirm is asked before anything else is done for a change of many rows.
// Without a terminal nobody can answer, and a script has to say --yes.
func (p *program) canConfirm(yes bool) error {
	if yes || p.interactive {
		return nil
	}
	return usageError("this concerns more than one row and wants to be confirmed, but there is no terminal to ask on: add --yes if it is meant")
}

// confirm asks before a change of many rows.
func (p *program) confirm(ctx context.Context, question string, yes bool) error {
	if yes {
		return nil
	}
	if err := p.canConfirm(yes); err != nil {
		return err
	}
	fmt.Fprintf(p.stderr, "%s [y/N] ", question)
	answer := make(chan string, 1)
	// A read from a terminal cannot be broken off, but Ctrl-C has to end this.
	go func() {
		line, _ := bufio.NewReader(p.stdin).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case line := <-answer:
		if line == "y" || line == "yes" {
			return nil
		}
	case <-ctx.Done():
	}
	return errors.New("not confirmed, nothing was changed")
}

// usageError is a fault of the command line that only the command can see.
func usageError(text string) error { return &exitError{exitUsage, errors.New(text)} }

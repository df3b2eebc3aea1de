package main

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// Exit codes, which scripts rely on.
const (
	exitOK       = 0
	exitRuntime  = 1
	exitUsage    = 2
	exitFindings = 3
)

// exitError gives an error an exit code other than exitRuntime. An exitError
// without an error says nothing: what there was to say has been printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// faults is a list of errors under one headline, printed one a line.
type faults struct {
	headline string
	errs     []error
	next     string
}

func (f *faults) Error() string {
	lines := []string{f.headline}
	for _, err := range f.errs {
		lines = append(lines, "  - "+err.Error())
	}
	if f.next != "" {
		lines = append(lines, f.next)
	}
	return strings.Join(lines, "\n")
}

func (f *faults) Unwrap() []error { return f.errs }

// report prints err, when there is anything to say, and returns its exit code.
func report(stderr io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	if text := err.Error(); text != "" {
		fmt.Fprintln(stderr, "relay: "+redact(text))
	}
	if coded, ok := errors.AsType[*exitError](err); ok {
		return coded.code
	}
	return exitRuntime
}

var (
	// From the colon after the user to the last @ of the line: a password that
	// was not escaped may hold an @ or a space.
	urlPassword = regexp.MustCompile(`(://[^\s:/@]*:)[^\n"'` + "`" + `]*@`)
	dsnPassword = regexp.MustCompile(`(?i)(password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s"'` + "`" + `]+)`)
)

// redact is the last line of defence against a password in a message: the
// settings that hold one are never printed on purpose, but a URL may stand in
// the wrong variable, or in an error of a library.
func redact(text string) string {
	text = urlPassword.ReplaceAllString(text, "$1***@")
	return dsnPassword.ReplaceAllString(text, "$1***")
}

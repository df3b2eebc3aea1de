package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestExitCodeOfErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		err  error
		code int
		text string
	}{
		{"no error", nil, 0, ""},
		{"any error is one of run time", errors.New("broken"), 1, "relay: broken\n"},
		{"an error with a code", &exitError{exitUsage, errors.New("wrong")}, 2, "relay: wrong\n"},
		{"a wrapped error keeps its code", fmt.Errorf("demo: %w", &exitError{exitFindings, errors.New("lost")}), 3, "relay: demo: lost\n"},
		{"what was said already is not repeated", &exitError{code: exitFindings}, 3, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var stderr bytes.Buffer
			if code := report(&stderr, tt.err); code != tt.code || stderr.String() != tt.text {
				t.Errorf("code %d, text %q; want %d, %q", code, stderr.String(), tt.code, tt.text)
			}
		})
	}
}

func TestRedactKeepsPasswordsOut(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, in, want string }{
		{"a URL", "connect to postgres://u:hidden@host/db: refused", "connect to postgres://u:***@host/db: refused"},
		{"a password with an at sign", "postgres://u:hid@den@host/db", "postgres://u:***@host/db"},
		{"a password with a space and a slash", `"postgres://u:hid d/en@host/db"`, `"postgres://u:***@host/db"`},
		{"a URL a line", "a://u:hidden@h\nb://v:hidden@i", "a://u:***@h\nb://v:***@i"},
		{"a URL with a user alone", "postgres://u@host/db", "postgres://u@host/db"},
		{"a connection string", "host=h password=hidden user=u", "host=h password=*** user=u"},
		{"a quoted password", `password = 'hid den\' x' user=u`, "password = *** user=u"},
		{"a URL without password", "see http://localhost:8080/metrics", "see http://localhost:8080/metrics"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := redact(tt.in)
			if got != tt.want || strings.Contains(got, "hid") {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

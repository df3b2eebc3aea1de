package main

import (
	"io"
	"log/slog"
	"os"

	"golang.org/x/term"
)

const (
	logText = "text"
	logJSON = "json"
)

// newLogger returns a logger to w with the level and format of s.
func newLogger(w io.Writer, s settings) *slog.Logger {
	options := &slog.HandlerOptions{Level: s.LogLevel}
	format := s.LogFormat
	if format == "" && isTerminal(w) {
		format = logText
	}
	if format == logText {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(w, options))
}

func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

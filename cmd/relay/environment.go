package main

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
	"github.com/outbox-relay/outbox-relay/relay"
)

// environment turns the NAME=value strings of a process into a map.
func environment(list []string) map[string]string {
	variables := make(map[string]string, len(list))
	for _, entry := range list {
		if name, value, found := strings.Cut(entry, "="); found {
			variables[name] = value
		}
	}
	return variables
}

// loadSettings reads all settings. Its error lists every fault there is and
// has the exit code for it.
func loadSettings(variables map[string]string) (settings, error) {
	s, errs := parseSettings(variables)
	return s, settingsError(append(errs, split(s.Validate())...))
}

// loadDatabaseSettings reads what the commands need that work in the database
// alone: its URL and the table. The other settings may be missing or wrong.
func loadDatabaseSettings(variables map[string]string) (s settings, table pgtable.Name, err error) {
	s, _ = parseSettings(variables)
	// A configuration that is valid but for these two.
	needed := relay.DefaultConfig()
	needed.DatabaseURL, needed.Table = s.DatabaseURL, s.Table
	needed.Brokers = []string{"unused:9092"}
	if err = settingsError(append(unknownVariables(variables), split(needed.Validate())...)); err == nil {
		table, err = pgtable.Parse(s.Table)
	}
	return s, table, err
}

// parseSettings reads the settings and returns what cannot be read. Those
// fields have their defaults, so that no second fault is found in them.
func parseSettings(variables map[string]string) (settings, []error) {
	var s settings
	errs := unknownVariables(variables)
	err := env.ParseWithOptions(&s, env.Options{Environment: variables})
	if err != nil {
		readable := maps.Clone(variables)
		for _, fault := range split(err) {
			name, err := unreadable(fault, variables)
			errs = append(errs, err)
			delete(readable, name)
		}
		s = settings{}
		if err := env.ParseWithOptions(&s, env.Options{Environment: readable}); err != nil {
			errs = append(errs, fmt.Errorf("read the settings: %w", err))
		}
	}
	s.Brokers, s.RequireTopics = trim(s.Brokers), trim(s.RequireTopics)
	return s, errs
}

// unreadable says which variable a parser refused and what it would take.
func unreadable(fault error, variables map[string]string) (name string, err error) {
	parse, ok := errors.AsType[env.ParseError](fault)
	if !ok {
		return "", fault
	}
	field, ok := reflect.TypeFor[settings]().FieldByName(parse.Name)
	if !ok {
		return "", fault
	}
	name = variableOf(field)
	rule := "must be another value"
	switch field.Type {
	case reflect.TypeFor[time.Duration]():
		rule = "must be a duration such as 500ms, 10s or 1m"
	case reflect.TypeFor[slog.Level]():
		rule = "allowed are debug, info, warn, error"
	case reflect.TypeFor[int]():
		rule = "must be a whole number"
	case reflect.TypeFor[float64]():
		rule = "must be a number"
	case reflect.TypeFor[bool]():
		rule = "allowed are true, false"
	}
	return name, fmt.Errorf("%s=%q: %s", name, variables[name], rule)
}

func variableOf(field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("env"), ",")
	return name
}

// settingsError puts the faults into one message, or returns nil.
func settingsError(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	return &exitError{exitUsage, &faults{
		headline: "wrong settings",
		errs:     errs,
		next:     `See "relay run --help" for all settings.`,
	}}
}

// split takes a list of errors apart. A list inside another error stays one
// fault: taken out, it would lose the words around it.
func split(err error) []error {
	if err == nil {
		return nil
	}
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		return list.Unwrap()
	}
	return []error{err}
}

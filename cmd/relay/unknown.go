package main

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

const prefix = "RELAY_"

// unknownVariables finds variables that look like settings and are none: a
// misspelt one would otherwise leave its default in force, unnoticed.
func unknownVariables(variables map[string]string) []error {
	known := settingNames()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		if !strings.HasPrefix(name, prefix) || slices.Contains(known, name) || fromKubernetes(name) {
			continue
		}
		if near := nearest(name, known); near != "" {
			errs = append(errs, fmt.Errorf("%s is no setting; did you mean %s?", name, near))
		} else {
			errs = append(errs, fmt.Errorf("%s is no setting; unset it", name))
		}
	}
	return errs
}

// fromKubernetes tells the variables that Kubernetes puts into every container
// of a namespace that has a Service named relay.
func fromKubernetes(name string) bool {
	return strings.HasPrefix(name, prefix+"SERVICE_") || name == prefix+"PORT" || strings.HasPrefix(name, prefix+"PORT_")
}

// settingNames returns the variables of all settings.
func settingNames() []string {
	var names []string
	for _, field := range reflect.VisibleFields(reflect.TypeFor[settings]()) {
		if name := variableOf(field); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// nearest returns the candidate that differs least from name, if by so little
// that it may be a slip.
func nearest(name string, candidates []string) string {
	best, least := "", len(name)/4+1
	for _, candidate := range candidates {
		if d := editDistance(name, candidate); d < least {
			best, least = candidate, d
		}
	}
	return best
}

// editDistance counts the letters to insert, delete or replace to turn a into b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}

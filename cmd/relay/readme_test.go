package main

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// The README's table of settings is the code's.
func TestReadmeListsEverySetting(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[settings]()) {
		name := variableOf(field)
		if name == "" {
			continue
		}
		row := "| `" + name + "` | " + field.Tag.Get("envDefault") + " | " + field.Tag.Get("doc") + " |"
		row = strings.ReplaceAll(row, "|  |", "| |")
		if !strings.Contains(string(readme), row+"\n") {
			t.Errorf("README.md lacks the line\n%s", row)
		}
	}
}

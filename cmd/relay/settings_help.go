package main

import (
	"reflect"
	"strings"
)

// settingsHelp lists every setting with its default and what it is for.
func settingsHelp() string {
	var b strings.Builder
	b.WriteString("Settings, from the environment:\n")
	for _, field := range reflect.VisibleFields(reflect.TypeFor[settings]()) {
		name := variableOf(field)
		if name == "" {
			continue
		}
		b.WriteString("\n  " + name)
		if value := field.Tag.Get("envDefault"); value != "" {
			b.WriteString(" (default " + value + ")")
		}
		b.WriteString("\n" + wrap(field.Tag.Get("doc"), 72, "      ") + "\n")
	}
	return b.String()
}

// wrap breaks text into indented lines of at most width characters.
func wrap(text string, width int, indent string) string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, indent+line), ""
		}
		line = strings.TrimLeft(line+" "+word, " ")
	}
	return strings.Join(append(lines, indent+line), "\n")
}

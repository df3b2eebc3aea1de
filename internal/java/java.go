// Package java finds what the programs on the JVM need that tests and benchmarks
// run: Java itself, and their jars.
package java

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
)

const minimum = 17

// LogProperties is a log4j2.properties that prints warnings and worse.
//
//go:embed log4j2.properties
var LogProperties []byte

var javaVersion = regexp.MustCompile(`version "(\d+)`)

// Find returns the java program, checked for its version: an older one fails
// with no more than a stack trace of its class loader.
func Find(ctx context.Context) (string, error) {
	const install = "on Debian: apt-get install default-jre-headless"
	java, err := exec.LookPath("java")
	if err != nil {
		return "", fmt.Errorf("find Java %d or later: %w; %s", minimum, err, install)
	}
	out, err := exec.CommandContext(ctx, java, "-version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w\n%s", java, err, out)
	}
	if err := check(string(out)); err != nil {
		return "", fmt.Errorf("%s: %w; %s", java, err, install)
	}
	return java, nil
}

func check(output string) error {
	match := javaVersion.FindStringSubmatch(output)
	if match == nil {
		return errors.New("cannot tell its version")
	}
	if major, err := strconv.Atoi(match[1]); err != nil || major < minimum {
		return fmt.Errorf("version is %s, need %d or later", match[1], minimum)
	}
	return nil
}

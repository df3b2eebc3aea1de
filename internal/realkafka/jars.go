package realkafka

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/outbox-relay/outbox-relay/internal/keeper"
)

//go:embed pom.xml
var pom []byte

const (
	version     = "4.4.0"
	minimumJava = 17
)

// fetchJars returns the folder with the broker's jars, which Maven fills on the
// first use of a machine.
func fetchJars(ctx context.Context, cache string) (string, error) {
	if cache == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("find cache for jars: %w", err)
		}
		cache = filepath.Join(base, "outbox-relay")
	}
	dir := filepath.Join(cache, "kafka-"+version)
	jars := filepath.Join(dir, "jars")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make cache for jars: %w", err)
	}
	// One process at a time: Maven's own repository is not made for two.
	unlock, err := keeper.Lock(ctx, filepath.Join(dir, "lock"))
	if err != nil {
		return "", fmt.Errorf("cache of jars: %w", err)
	}
	defer unlock()
	if _, err := os.Stat(jars); err == nil {
		return jars, nil
	}

	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return "", fmt.Errorf("find Maven, which downloads the jars: %w; on Debian: apt-get install maven", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "pom.xml"), pom, 0o644); err != nil {
		return "", fmt.Errorf("write pom.xml for jars: %w", err)
	}
	// Moved into place as a whole, so that a download that breaks off leaves
	// no half of a class path.
	partial := jars + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return "", fmt.Errorf("clean cache of jars: %w", err)
	}
	cmd := exec.CommandContext(ctx, mvn, "--batch-mode", "--quiet", "dependency:copy-dependencies", "-DoutputDirectory="+partial)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("download jars with Maven: %w; set KAFKA_BROKERS to use a broker of your own:\n%s", err, out)
	}
	if err := os.Rename(partial, jars); err != nil {
		return "", fmt.Errorf("move jars into the cache: %w", err)
	}
	return jars, nil
}

var javaVersion = regexp.MustCompile(`version "(\d+)`)

// findJava returns the java program, checked for its version: an older one
// fails with no more than a stack trace of its class loader.
func findJava(ctx context.Context) (string, error) {
	const install = "on Debian: apt-get install default-jre-headless"
	java, err := exec.LookPath("java")
	if err != nil {
		return "", fmt.Errorf("find Java %d or later: %w; %s", minimumJava, err, install)
	}
	out, err := exec.CommandContext(ctx, java, "-version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w\n%s", java, err, out)
	}
	if err := checkJava(string(out)); err != nil {
		return "", fmt.Errorf("%s: %w; %s", java, err, install)
	}
	return java, nil
}

func checkJava(output string) error {
	match := javaVersion.FindStringSubmatch(output)
	if match == nil {
		return errors.New("cannot tell its version")
	}
	if major, err := strconv.Atoi(match[1]); err != nil || major < minimumJava {
		return fmt.Errorf("version is %s, need %d or later", match[1], minimumJava)
	}
	return nil
}

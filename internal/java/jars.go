package java

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/outbox-relay/outbox-relay/internal/keeper"
)

// Jars returns the folder with the jars that a pom.xml names and all that they
// depend on, which Maven fills on the first use of a machine.
//
// The folder lies in cache, or in the folder outbox-relay of the user's cache
// when that is empty. Its name must tell the version of what it holds, since a
// folder that exists is taken as it is.
//
// It fails, saying what to install, without Maven, and when Maven fails.
func Jars(ctx context.Context, cache, name string, pom []byte) (string, error) {
	if cache == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("find cache for jars: %w", err)
		}
		cache = filepath.Join(base, "outbox-relay")
	}
	dir := filepath.Join(cache, name)
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
		return "", fmt.Errorf("download jars with Maven: %w:\n%s", err, out)
	}
	if err := os.Rename(partial, jars); err != nil {
		return "", fmt.Errorf("move jars into the cache: %w", err)
	}
	return jars, nil
}

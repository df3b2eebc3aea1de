package embedpg

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// binaries is the folder in the cache that holds the extracted server.
const binaries = "dist"

// openCache returns the folder for this version's binaries, which it creates.
// The folder is named for version and platform, so that an upgrade, or a home
// shared by different machines, never runs the wrong server.
func openCache(parent string) (string, error) {
	if parent == "" {
		var err error
		if parent, err = defaultCache(); err != nil {
			return "", err
		}
	}
	name := fmt.Sprintf("postgres-%s-%s-%s", embeddedpostgres.V18, runtime.GOOS, runtime.GOARCH)
	dir := filepath.Join(parent, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make cache for Postgres binaries: %w", err)
	}
	return dir, nil
}

func defaultCache() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/cache/outbox-relay", nil
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find cache for Postgres binaries: %w", err)
	}
	return filepath.Join(base, "outbox-relay"), nil
}

// removePartial clears what a process that died while it filled the cache left
// behind. The downloaded archive stays: it was moved into place as a whole.
func removePartial(cache string) error {
	leftovers, err := filepath.Glob(filepath.Join(cache, "temp_*"))
	if err != nil {
		return fmt.Errorf("clean cache of Postgres binaries: %w", err)
	}
	for _, path := range append(leftovers, filepath.Join(cache, binaries)) {
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("clean cache of Postgres binaries: %w", err)
		}
	}
	return nil
}

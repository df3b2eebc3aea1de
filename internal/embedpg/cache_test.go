package embedpg

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestHalfFilledCacheIsClearedButForTheWholeArchive(t *testing.T) {
	t.Parallel()
	cache, err := openCache(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"archive.txz", "lock", "temp_1/bin/postgres", binaries + "/bin/pg_ctl"} {
		path = filepath.Join(cache, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := removePartial(cache); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(cache)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, entry := range entries {
		left = append(left, entry.Name())
	}
	if want := []string{"archive.txz", "lock"}; !slices.Equal(left, want) {
		t.Errorf("left in the cache: %v, want %v", left, want)
	}
}

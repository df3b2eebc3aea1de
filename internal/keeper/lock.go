package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// Lock takes an exclusive lock on the file at path, which it creates, and
// returns the function that gives it back. The lock is for processes that fill
// one cache at the same time; the kernel frees it when its owner dies. Lock
// waits until ctx ends.
func Lock(ctx context.Context, path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	// Asked again and again, since a blocking flock cannot be interrupted.
	retry := time.NewTicker(50 * time.Millisecond)
	defer retry.Stop()
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			_ = file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			_ = file.Close()
			return nil, fmt.Errorf("lock %s, which another process holds: %w", path, ctx.Err())
		case <-retry.C:
		}
	}
}

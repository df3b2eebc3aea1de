package embedpg

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// account runs the server when this process is root, as which initdb and
// Postgres refuse to run.
const account = "nobody"

// dropRoot turns a root process into one of the account, for good, and gives
// it the folders it writes to. It does nothing for any other user. The whole
// child changes its user, rather than each program that it starts, because the
// library that starts them cannot be told to; and a child that was started as
// another user could not execute this program's file in Go's private build
// folder.
func dropRoot(dirs ...string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	nobody, err := user.Lookup(account)
	if err != nil {
		return fmt.Errorf("find an account to run Postgres, which refuses root: %w; run as another user, or use a server of your own", err)
	}
	uid, err := strconv.Atoi(nobody.Uid)
	if err != nil {
		return fmt.Errorf("uid of account %s: %w", account, err)
	}
	gid, err := strconv.Atoi(nobody.Gid)
	if err != nil {
		return fmt.Errorf("gid of account %s: %w", account, err)
	}
	for _, dir := range dirs {
		if err := os.Chown(dir, uid, gid); err != nil {
			return fmt.Errorf("give folder to account %s: %w", account, err)
		}
	}
	if err := syscall.Setgroups([]int{gid}); err != nil {
		return fmt.Errorf("drop root's groups: %w", err)
	}
	if err := syscall.Setgid(gid); err != nil {
		return fmt.Errorf("drop root's group: %w", err)
	}
	if err := syscall.Setuid(uid); err != nil {
		return fmt.Errorf("drop root: %w", err)
	}
	return nil
}

//go:build unix

package datadir

import (
	"os"
	"syscall"
)

// lockFile takes the lock of f, which the kernel drops when f or the process ends.
func lockFile(f *os.File) error {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}

// ownedByUser reports whether this process's user owns a file.
func ownedByUser(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}

package datadir

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// lockFile takes the lock of f, which the kernel releases when f is closed or the process ends.
func lockFile(f *os.File) error {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}

// ownedByUser reports whether this process's user owns a file.
func ownedByUser(info os.FileInfo) bool {
	return ownerOf(info) == os.Geteuid()
}

// adopt makes the owner of dir the owner of path and its contents, unless that is this process's user.
func adopt(dir, path string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if ownedByUser(info) {
		return nil
	}
	return filepath.WalkDir(path, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(name, ownerOf(info), groupOf(info))
	})
}

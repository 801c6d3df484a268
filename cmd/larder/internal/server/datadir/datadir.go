package datadir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Dir is a data directory that this process has locked.
type Dir struct {
	// Path is absolute.
	Path string

	lock    *os.File
	scratch bool // a temporary directory, which Close removes
}

// Names of temporary data directories, after and before they are locked.
const (
	scratchPrefix   = "larder-run-"
	unlockedPattern = "larder-new-*"
)

// Scratch creates a temporary directory with mode 0700, which Close removes. It first removes the directories of
// processes that were killed.
func Scratch() (*Dir, error) {
	sweepScratch(os.TempDir())
	path, err := os.MkdirTemp("", unlockedPattern)
	if err != nil {
		return nil, fmt.Errorf("server: temporary directory: %w", err)
	}
	// The parent directory is not checked: in a container, all users may write to it.
	d, err := take(path, nil)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(path))
	}
	d.scratch = true
	// The directory gets its final name when it is locked, because sweepScratch of another process removes unlocked
	// directories with such names.
	_, random, _ := strings.Cut(path, strings.TrimSuffix(unlockedPattern, "*"))
	d.Path = filepath.Join(os.TempDir(), scratchPrefix+random)
	if err := os.Rename(path, d.Path); err != nil {
		d.Path = path
		return nil, errors.Join(fmt.Errorf("server: temporary directory: %w", err), d.Close())
	}
	return d, nil
}

// sweepScratch removes this user's temporary directories whose processes have ended, because they have
// private keys. It ignores errors.
func sweepScratch(dir string) {
	paths, _ := filepath.Glob(filepath.Join(dir, scratchPrefix+"*")) // none if the path of dir is not a valid pattern
	for _, path := range paths {
		// Only this user can write to the directory, so no other can replace it before it is removed.
		info, err := os.Lstat(path)
		if err != nil || info.Mode() != os.ModeDir|0o700 || !ownedByUser(info) {
			continue
		}
		lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if lockFile(lock) == nil {
			_ = os.RemoveAll(path)
		}
		lock.Close()
	}
}

// lockName is the name of the file in a data directory that its process locks.
const lockName = "lock"

// Open creates the directory with mode 0700 if necessary, and locks it. It first rejects a directory that another user
// owns, can write to, or has put files in: the server would trust a CA of that user.
//
// A process that replaces another passes the inherited lock. Others pass nil.
func Open(path string, lock *os.File) (*Dir, error) {
	return open(path, lock, func(os.FileInfo) int { return os.Geteuid() })
}

// OpenOfOwner is like Open, but accepts the owner of the directory in place of this process's user. It is
// for commands that trust nothing in the directory.
func OpenOfOwner(path string) (*Dir, error) { return open(path, nil, ownerOf) }

// open opens path for the user that userOf returns for the directory.
func open(path string, lock *os.File, userOf func(os.FileInfo) int) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("server: data directory: %w", err)
	}
	user := os.Geteuid()
	if info, err := os.Stat(path); err == nil {
		user = userOf(info)
	}
	if err := inspect(path, user); err != nil {
		return nil, fmt.Errorf("server: data directory: %w", err)
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("server: data directory: %w", err)
	}
	if err := inspect(path, user); err != nil { // another process may have created the directory
		return nil, fmt.Errorf("server: data directory: %w", err)
	}
	return take(path, lock)
}

// take locks the directory at path. lock is its open lock file, or nil.
func take(path string, lock *os.File) (_ *Dir, err error) {
	if lock == nil {
		if lock, err = os.OpenFile(filepath.Join(path, lockName), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
			return nil, fmt.Errorf("server: data directory: %w", err)
		}
	}
	if err := lockFile(lock); err != nil {
		lock.Close()
		return nil, fmt.Errorf("server: data directory %s is in use by another process", path)
	}
	return &Dir{Path: path, lock: lock}, nil
}

// Adopt makes the owner of the directory the owner of the lock and of path, which is below the directory, with all its
// contents. Root may restore files for the server of another user.
func (d *Dir) Adopt(path string) error {
	if err := errors.Join(adopt(d.Path, path), adopt(d.Path, filepath.Join(d.Path, lockName))); err != nil {
		return fmt.Errorf("server: data directory: %w", err)
	}
	return nil
}

// Close releases the lock, and removes a temporary directory.
func (d *Dir) Close() error {
	if !d.scratch {
		return d.lock.Close()
	}
	return errors.Join(os.RemoveAll(d.Path), d.lock.Close())
}

// Lock returns the locked file. The lock lasts until all processes have closed the file.
func (d *Dir) Lock() *os.File { return d.lock }

// Temporary reports whether Close removes the directory.
func (d *Dir) Temporary() bool { return d.scratch }

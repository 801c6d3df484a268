package datadir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Dir is the data directory while this process holds it.
type Dir struct {
	// Path is absolute.
	Path string

	lock    *os.File
	scratch bool // for this process alone: Close removes it
}

// Names of directories that stand in for a data directory, and of those that are not
// locked yet.
const (
	scratchPrefix   = "larder-run-"
	unlockedPattern = "larder-new-*"
)

// Scratch makes a directory for as long as this process runs, for its owner alone. It
// removes first what processes left that were killed.
func Scratch() (*Dir, error) {
	sweepScratch(os.TempDir())
	path, err := os.MkdirTemp("", unlockedPattern)
	if err != nil {
		return nil, fmt.Errorf("server: temporary directory: %w", err)
	}
	d, err := Open(path)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(path))
	}
	d.scratch = true
	// Who finds the directory under its last name finds it locked.
	_, random, _ := strings.Cut(path, strings.TrimSuffix(unlockedPattern, "*"))
	d.Path = filepath.Join(os.TempDir(), scratchPrefix+random)
	if err := os.Rename(path, d.Path); err != nil {
		d.Path = path
		return nil, errors.Join(fmt.Errorf("server: temporary directory: %w", err), d.Close())
	}
	return d, nil
}

// sweepScratch removes this user's directories of processes that have ended, which hold
// private keys. What it cannot remove stays.
func sweepScratch(dir string) {
	paths, err := filepath.Glob(filepath.Join(dir, scratchPrefix+"*"))
	if err != nil {
		return // a directory that is no pattern
	}
	for _, path := range paths {
		// Nobody else can put another thing in the place of a directory of this user's
		// that nobody else may write to.
		info, err := os.Lstat(path)
		if err != nil || info.Mode() != os.ModeDir|0o700 || !mine(info) {
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

// lockName is the file in a data directory that its process has locked.
const lockName = "lock"

// Open makes the directory, for its owner alone, and takes its lock.
func Open(path string) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("server: data directory: %w", err)
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("server: data directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("server: data directory: %w", err)
	}
	if err := lockFile(lock); err != nil {
		lock.Close()
		return nil, fmt.Errorf("server: data directory %s is in use by another process", path)
	}
	return &Dir{Path: path, lock: lock}, nil
}

// Sub makes a directory below and returns its path.
func (d *Dir) Sub(name string) (string, error) {
	dir := filepath.Join(d.Path, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("server: data directory: %w", err)
	}
	return dir, nil
}

// Close gives the lock back, and removes what was only for this process.
func (d *Dir) Close() error {
	if !d.scratch {
		return d.lock.Close()
	}
	return errors.Join(os.RemoveAll(d.Path), d.lock.Close())
}

// Temporary reports whether the directory goes with this process.
func (d *Dir) Temporary() bool { return d.scratch }

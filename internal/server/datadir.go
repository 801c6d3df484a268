package server

import (
	"fmt"
	"os"
	"path/filepath"
)

// dataDir is the data directory while this process holds it.
type dataDir struct {
	path string
	lock *os.File // nil: nobody else knows the directory, and close removes it
}

// scratchDir makes a directory for as long as this process runs, for its owner alone.
func scratchDir() (*dataDir, error) {
	path, err := os.MkdirTemp("", "larder-")
	if err != nil {
		return nil, fmt.Errorf("server: temporary directory: %w", err)
	}
	return &dataDir{path: path}, nil
}

// openDataDir makes the directory, for its owner alone, and takes its lock.
func openDataDir(path string) (*dataDir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("server: data directory: %w", err)
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("server: data directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("server: data directory: %w", err)
	}
	if err := lockFile(lock); err != nil {
		lock.Close()
		return nil, fmt.Errorf("server: data directory %s is in use by another process", path)
	}
	return &dataDir{path: path, lock: lock}, nil
}

// sub makes a directory below and returns its path.
func (d *dataDir) sub(name string) (string, error) {
	dir := filepath.Join(d.path, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("server: data directory: %w", err)
	}
	return dir, nil
}

// close gives the lock back, or removes what was only for this process.
func (d *dataDir) close() error {
	if d.lock == nil {
		return os.RemoveAll(d.path)
	}
	return d.lock.Close()
}

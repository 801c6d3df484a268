package snapshot

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestInterruptedSaveLeavesNoFile checks a Save whose context ends while it reads.
func TestInterruptedSaveLeavesNoFile(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	first := readerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil })
	if _, err := write(ctx, filepath.Join(dir, "backup"), first); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want Canceled", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 { // not even the ".part" file
		t.Errorf("the directory has %v, error %v; want no files", left, err)
	}
}

// readerFunc is an io.Reader.
type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestPlaceReplacesNoFile checks file systems with and without hard links.
func TestPlaceReplacesNoFile(t *testing.T) {
	for name, link := range map[string]func(from, to string) error{
		"links":    os.Link,
		"no links": func(string, string) error { return errors.ErrUnsupported },
	} {
		dir := t.TempDir()
		part, path := filepath.Join(dir, "part"), filepath.Join(dir, "path")
		write := func(file, text string) {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write(part, "new")
		if err := place(part, path, link); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_ = os.Remove(part) // with hard links, it is the same file
		write(part, "newer")
		if err := place(part, path, link); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: place over a file: got error %v, want ErrExist", name, err)
		}
		if is, err := os.ReadFile(path); err != nil || string(is) != "new" {
			t.Errorf("%s: the file contains %q, error %v; want new", name, is, err)
		}
	}
}

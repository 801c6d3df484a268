package snapshot

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestInterruptedSaveLeavesNothing checks that a Save whose context ends while it reads leaves no file behind.
func TestInterruptedSaveLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	first := readerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil })
	if _, err := write(ctx, filepath.Join(dir, "backup"), first); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want Canceled", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 { // nor a ".part"
		t.Errorf("there is %v, %v", left, err)
	}
}

// readerFunc is an io.Reader.
type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestPlaceReplacesNoFile checks that place does not replace an existing file, with and without hard links.
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
		_ = os.Remove(part) // the same file by another name, if there are links
		write(part, "newer")
		if err := place(part, path, link); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: over a file: %v, want ErrExist", name, err)
		}
		if is, err := os.ReadFile(path); err != nil || string(is) != "new" {
			t.Errorf("%s: there is %q, %v", name, is, err)
		}
	}
}

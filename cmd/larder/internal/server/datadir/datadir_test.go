//go:build unix

package datadir

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestScratchDirectoriesDoNotOutliveTheirProcess checks that the next process that needs a scratch directory removes
// those of killed processes. It must not touch directories in use, nor others.
func TestScratchDirectoriesDoNotOutliveTheirProcess(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	scratch := func() *Dir {
		t.Helper()
		d, err := Scratch()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(d.Path, "key"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return d
	}
	expect := func(want ...string) {
		t.Helper()
		var got []string
		entries, err := os.ReadDir(temp)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			got = append(got, filepath.Join(temp, e.Name()))
		}
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("there are %v, want %v", got, want)
		}
	}
	open := scratch() // to others, too
	foreign := open.Path
	if err := errors.Join(os.Chmod(foreign, 0o777), open.lock.Close()); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(temp, scratchPrefix+"link")
	target := t.TempDir()
	if err := os.WriteFile(filepath.Join(target, lockName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	used := scratch()
	killed := scratch()
	if err := killed.lock.Close(); err != nil { // as the kernel does
		t.Fatal(err)
	}
	expect(foreign, link, used.Path, killed.Path)
	next := scratch()
	expect(foreign, link, used.Path, next.Path)
	for _, d := range []*Dir{used, next} {
		if info, err := os.Stat(d.Path); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%v, %v", info, err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	expect(foreign, link)
	if _, err := os.Stat(filepath.Join(target, lockName)); err != nil {
		t.Error(err)
	}
}

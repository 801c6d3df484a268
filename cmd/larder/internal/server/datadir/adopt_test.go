//go:build unix

package datadir

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestAdoptGivesFilesToTheOwner checks that files that root writes into another user's directory are given to that
// user. Other files keep their owners.
func TestAdoptGivesFilesToTheOwner(t *testing.T) {
	owner := os.Geteuid()
	path := t.TempDir()
	if owner == 0 {
		const nobody = 65534
		owner = nobody
		if err := os.Chown(path, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	d, err := OpenOfOwner(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, name := range []string{"given/below", "kept/below"} {
		if err := os.MkdirAll(filepath.Join(path, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(path, "given", "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Adopt(filepath.Join(path, "given")); err != nil {
		t.Fatal(err)
	}
	seen := 0
	err = filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		want := owner
		if rel, _ := filepath.Rel(path, name); rel == "kept" || filepath.Dir(rel) == "kept" {
			want = os.Geteuid()
		}
		seen++
		if uid := int(info.Sys().(*syscall.Stat_t).Uid); uid != want {
			t.Errorf("%s belongs to %d, want %d", name, uid, want)
		}
		return nil
	})
	if err != nil || seen != 7 {
		t.Errorf("%d files, %v", seen, err)
	}
}

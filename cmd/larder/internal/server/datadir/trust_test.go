//go:build unix

package datadir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRefusesWhatOthersControl checks the refusal of a directory that a user other than root and its owner controls:
// the user owns or can write it, a file in it or a parent, or can read a key. No other directory is refused.
func TestRefusesWhatOthersControl(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	const other = 65533
	self := os.Geteuid()
	// give makes path belong to another user. If this process cannot do that, the directory is used as that other
	// user.
	give := func(path string) {
		if os.Geteuid() == 0 {
			must(os.Lchown(path, other, other))
		} else {
			self = other
		}
	}
	chmod := func(path string, mode os.FileMode) { must(os.Chmod(path, mode)) }
	link := func(from, to string) { must(os.Symlink(to, from)) }
	for _, test := range []struct {
		name string
		make func(dir, beside string) // dir has pki/ca.crt and pki/ca.key
		want string                   // "" if it is accepted
	}{
		{"its own", func(dir, _ string) {}, ""},
		{"a link to it", func(dir, beside string) { must(os.Rename(dir, beside+"/moved")); link(dir, beside+"/moved") }, ""},
		{"part of it elsewhere", func(dir, beside string) {
			must(os.Rename(dir+"/pki", beside+"/pki"))
			link(dir+"/pki", "../beside/pki")
		}, ""},
		{"links in a circle", func(dir, _ string) { link(dir+"/a", "."); link(dir+"/b", "a/.") }, ""},
		{"a link to nothing", func(dir, _ string) { link(dir+"/a", "nothing") }, ""},
		{"a sticky directory around it", func(dir, _ string) { chmod(filepath.Dir(dir), 0o777|os.ModeSticky) }, ""},

		{"of another", func(dir, _ string) { give(dir) }, "belongs to user"},
		{"a file of another", func(dir, _ string) { give(dir + "/pki/ca.crt") }, "belongs to user"},
		{"a link of another", func(dir, _ string) { link(dir+"/pki/sa.key", "ca.key"); give(dir + "/pki/sa.key") }, "belongs to user"},
		{"a link to what is another's", func(dir, beside string) { link(dir+"/etcd", beside); give(beside) }, "belongs to user"},
		{"in another's directory", func(dir, _ string) { give(filepath.Dir(dir)) }, "belongs to user"},
		{"writable for all", func(dir, _ string) { chmod(dir, 0o777) }, "every user can write to"},
		{"sticky and writable for all", func(dir, _ string) { chmod(dir, 0o777|os.ModeSticky) }, "every user can write to"},
		{"a file writable for all", func(dir, _ string) { chmod(dir+"/pki/ca.crt", 0o666) }, "every user can write to"},
		{"in a directory writable for all", func(dir, _ string) { chmod(filepath.Dir(dir), 0o777) }, "every user can write to"},
		{"a link to what all may write", func(dir, beside string) { link(dir+"/etcd", beside); chmod(beside, 0o777) }, "every user can write to"},
		{"a key that all may read", func(dir, _ string) { chmod(dir+"/pki/ca.key", 0o644) }, "other users can read"},
	} {
		t.Run(test.name, func(t *testing.T) {
			self = os.Geteuid()
			around := filepath.Join(t.TempDir(), "around")
			dir, beside := filepath.Join(around, "data"), filepath.Join(around, "beside")
			must(os.MkdirAll(filepath.Join(dir, "pki"), 0o700))
			must(os.MkdirAll(beside, 0o700))
			for _, name := range []string{"ca.crt", "ca.key"} {
				must(os.WriteFile(filepath.Join(dir, "pki", name), nil, 0o600))
			}
			test.make(dir, beside)
			err := inspect(dir, self)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n")) {
				t.Errorf("%v, want %q", err, test.want)
			}
			if self != os.Geteuid() {
				return
			}
			d, err := Open(dir, nil)
			if (err == nil) != (test.want == "") {
				t.Errorf("opened: %v", err)
			}
			if err == nil {
				must(d.Close())
			} else if _, err := os.Lstat(filepath.Join(dir, lockName)); err == nil {
				t.Error("something was made in a directory that is refused")
			}
		})
	}
}

// TestTrustedGroupsMayWrite checks that root's group may write to a directory. A group of this process may write if root
// gave the directory to the group, as a kubelet does with a volume.
func TestTrustedGroupsMayWrite(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to groups")
	}
	const user, group = 65533, 65533
	for _, test := range []struct {
		owner, group int
		want         string
	}{
		{0, 0, ""}, {user, 0, ""}, {user, group, "group 65533 can write to"}, {0, group, "group 65533 can write to"},
	} {
		dir := t.TempDir()
		if err := os.Chown(dir, test.owner, test.group); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o770); err != nil {
			t.Fatal(err)
		}
		if err := inspect(dir, user); (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("of %d, group %d: %v, want %q", test.owner, test.group, err, test.want)
		}
	}
}

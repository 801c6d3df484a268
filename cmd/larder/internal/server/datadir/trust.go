package datadir

import (
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// A server trusts the CA, the keys and the objects in its data directory. So only root and the server's
// user may have written to it, or be able to write to it. sshd requires the same of its files.

// overflowUser is the owner that a user namespace shows for files of users outside of the namespace, such as root's
// directories above it.
const overflowUser = 65534

// maxLinks limits the symbolic links on the path to a directory.
const maxLinks = 40

// trust has the user and the groups that may write to the directory, in addition to root.
type trust struct {
	user   int
	groups []int
	seen   map[string]bool // paths that all has checked
}

// inspect rejects the directory dir, which need not exist, if a user other than root and owner
//
//   - owns or can write to dir, a directory on the path to it, or anything in it, or
//   - can read a key in it.
func inspect(dir string, owner int) error {
	t := trust{user: owner, groups: []int{0}, seen: make(map[string]bool)}
	if u, err := user.LookupId(strconv.Itoa(owner)); err == nil {
		if g, err := user.LookupGroupId(u.Gid); err == nil && g.Name == u.Username { // the user's private group
			if gid, err := strconv.Atoi(g.Gid); err == nil {
				t.groups = append(t.groups, gid)
			}
		}
	}
	resolved, err := t.follow(dir)
	if err != nil {
		return err
	}
	info, err := os.Lstat(resolved)
	if os.IsNotExist(err) {
		return nil
	} else if err != nil {
		return err
	}
	// Trust a group of this process on a directory that root owns. A kubelet sets the group of a volume to a pod's
	// fsGroup, and otherwise the process could not use it.
	if group := groupOf(info); ownerOf(info) == 0 && owner != 0 {
		if groups, err := os.Getgroups(); err == nil && (slices.Contains(groups, group) || os.Getegid() == group) {
			t.groups = append(t.groups, group)
		}
	}
	return t.all(resolved)
}

// follow checks the directories and symbolic links on the path, and returns the resolved path, which it
// does not check. It stops at a file that does not exist.
func (t *trust) follow(path string) (string, error) {
	at, rest, links := "/", strings.Split(path, "/"), 0
	for shared := false; len(rest) > 0; rest = rest[1:] {
		switch rest[0] {
		case "", ".":
			continue
		case "..":
			at, shared = filepath.Dir(at), true
			continue
		}
		next := filepath.Join(at, rest[0])
		info, err := os.Lstat(next)
		if os.IsNotExist(err) {
			return filepath.Join(append([]string{at}, rest...)...), nil
		} else if err != nil {
			return "", err
		}
		last := !slices.ContainsFunc(rest[1:], func(s string) bool { return s != "" && s != "." })
		link := info.Mode()&os.ModeSymlink != 0
		if last && !link {
			return next, nil
		}
		if err := t.owned(next, info); err != nil && (shared || ownerOf(info) != overflowUser) {
			return "", err
		}
		if link {
			target, err := os.Readlink(next)
			if err != nil {
				return "", err
			}
			if links++; links > maxLinks {
				return "", fmt.Errorf("%s: too many symbolic links", path)
			}
			if filepath.IsAbs(target) {
				at = "/"
			}
			rest = slices.Concat([]string{""}, strings.Split(target, "/"), rest[1:])
			continue
		}
		// In a sticky directory no user can replace files of another user.
		shared = info.Mode()&os.ModeSticky != 0
		if err := t.unshared(next, info); err != nil && !shared {
			return "", err
		}
		at = next
	}
	return at, nil
}

// all checks path and all its contents.
func (t *trust) all(path string) error {
	if t.seen[path] {
		return nil
	}
	t.seen[path] = true
	return filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil // removed meanwhile by the server that uses the directory
		} else if err != nil {
			return err
		}
		info, err := entry.Info()
		if os.IsNotExist(err) {
			return nil
		} else if err != nil {
			return err
		}
		if err := t.owned(name, info); err != nil {
			return err
		}
		switch info.Mode().Type() {
		case os.ModeSymlink:
			target, err := t.follow(name)
			if err != nil {
				return err
			}
			return t.all(target)
		case os.ModeSocket: // the directory restricts access to the socket
			return nil
		}
		if err := t.unshared(name, info); err != nil {
			return err
		}
		if strings.HasSuffix(name, ".key") && (info.Mode()&0o004 != 0 || info.Mode()&0o040 != 0 && !slices.Contains(t.groups, groupOf(info))) {
			return fmt.Errorf("other users can read %s (mode %04o), so a private key in it may be known to them: remove it, or run chmod 600 %s if you are sure that no one has read it", name, info.Mode().Perm(), name)
		}
		return nil
	})
}

// owned returns an error for files of other users.
func (t *trust) owned(name string, info os.FileInfo) error {
	owner := ownerOf(info)
	if owner == t.user || owner == 0 {
		return nil
	}
	who := strconv.Itoa(owner)
	if u, err := user.LookupId(who); err == nil {
		who += " (" + u.Username + ")"
	}
	return fmt.Errorf("%s belongs to user %s, who could change what the server trusts: run the server as that user, use chown if you trust the files, or choose another directory", name, who)
}

// unshared returns an error for files to which another group, or every user, can write.
func (t *trust) unshared(name string, info os.FileInfo) error {
	mode := info.Mode().Perm()
	switch {
	case mode&0o002 != 0:
		return fmt.Errorf("every user can write to %s (mode %04o) and change what the server trusts: run chmod o-w %s if you trust the files, or choose another directory", name, mode, name)
	case mode&0o020 != 0 && !slices.Contains(t.groups, groupOf(info)):
		return fmt.Errorf("group %d can write to %s (mode %04o) and change what the server trusts: run chmod g-w %s if you trust the files, or choose another directory", groupOf(info), name, mode, name)
	}
	return nil
}

func ownerOf(info os.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }

func groupOf(info os.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Gid) }

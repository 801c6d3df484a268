package main

import (
	"bytes"
	"io/fs"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// setMemory sets the garbage collector's memory limit to nine tenths of the limit of the process's
// cgroups, unless GOMEMLIMIT is set. Near the limit the collector then works harder, so that the process
// is not killed for exceeding it.
func setMemory(getenv func(string) string) {
	if getenv("GOMEMLIMIT") != "" {
		return
	}
	if limit, ok := cgroupLimit(os.DirFS("/")); ok {
		debug.SetMemoryLimit(limit / 10 * 9)
	}
}

// cgroupLimit returns the least limit in bytes of the process's cgroup and of its parents, in both
// versions. A container may see its own cgroup as the root, whatever /proc/self/cgroup says. So
// cgroupLimit skips cgroups that do not exist.
func cgroupLimit(root fs.FS) (int64, bool) {
	least, found := int64(0), false
	own, _ := fs.ReadFile(root, "proc/self/cgroup") // the roots have limits, too
	for _, line := range strings.Split(string(own)+"0::/\n1:memory:/\n", "\n") {
		fields := strings.SplitN(line, ":", 3)
		if len(fields) < 3 {
			continue
		}
		mounts, file := []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"}, "memory.max"
		switch controllers := "," + fields[1] + ","; {
		case strings.Contains(controllers, ",memory,"):
			mounts, file = []string{"sys/fs/cgroup/memory"}, "memory.limit_in_bytes"
		case fields[1] != "":
			continue
		}
		for _, mount := range mounts {
			for at := path.Clean("/" + fields[2]); ; at = path.Dir(at) {
				if limit, ok := limitIn(root, path.Join(mount, at, file)); ok && (!found || limit < least) {
					least, found = limit, true
				}
				if at == "/" {
					break
				}
			}
		}
	}
	return least, found
}

// limitIn returns the limit in a file, if there is one.
func limitIn(root fs.FS, name string) (int64, bool) {
	const unlimited = 1 << 60 // version 1 writes a number near the largest
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	limit, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
	return limit, err == nil && limit > 0 && limit < unlimited
}

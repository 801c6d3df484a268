package main

import (
	"bytes"
	"os"
	"runtime/debug"
	"strconv"
)

// setMemory tells the garbage collector how much memory there is, unless the
// environment did: in a container with a limit it works harder near nine tenths
// of it rather than be killed at the whole.
func setMemory(getenv func(string) string) {
	if getenv("GOMEMLIMIT") != "" {
		return
	}
	if limit, ok := cgroupLimit("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"); ok {
		debug.SetMemoryLimit(limit / 10 * 9)
	}
}

// cgroupLimit reads the first of files that sets a limit in bytes.
func cgroupLimit(files ...string) (int64, bool) {
	const unlimited = 1 << 60 // version 1 writes a number near the largest
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		limit, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
		if err == nil && limit > 0 && limit < unlimited {
			return limit, true
		}
	}
	return 0, false
}

package main

import (
	"bytes"
	"os"
	"runtime/debug"
	"strconv"
)

// setMemory sets the garbage collector's memory limit to nine tenths of the container's,
// unless GOMEMLIMIT is set: the collector then works harder near the limit, and the process is
// not killed for exceeding it.
func setMemory(getenv func(string) string) {
	if getenv("GOMEMLIMIT") != "" {
		return
	}
	if limit, ok := cgroupLimit("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"); ok {
		debug.SetMemoryLimit(limit / 10 * 9)
	}
}

// cgroupLimit returns the limit in bytes of the first of files that has one.
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

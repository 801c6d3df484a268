package bench

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/larder-io/larder/bench/process"
)

// Machine describes this machine in one line.
func Machine() string {
	parts := []string{fmt.Sprintf("%d CPUs", runtime.NumCPU())}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, rest, found := bytes.Cut(info, []byte("model name")); found {
			line, _, _ := bytes.Cut(rest, []byte("\n"))
			parts[0] += " (" + strings.Trim(string(line), " \t:") + ")"
		}
	}
	if info, err := os.ReadFile("/proc/meminfo"); err == nil {
		parts = append(parts, Bytes(process.Figure(info, "MemTotal:")<<10)+" of memory")
	}
	system := runtime.GOOS + "/" + runtime.GOARCH
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		system += " " + strings.TrimSpace(string(release))
	}
	return strings.Join(append(parts, system, runtime.Version()), ", ")
}

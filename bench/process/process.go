package process

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"time"
)

// Process reads the usage of a process of this machine. The zero Process means a server on another machine and
// reports nothing.
type Process struct {
	// Name is its name in reports.
	Name string
	// PID is the process id, 0 for none.
	PID int
}

// Usage is the usage of a process since it began.
type Usage struct {
	CPU time.Duration `json:"cpuNanoseconds"`
	// RSS is the resident memory now, Anonymous the part of it that no file backs, PeakRSS the maximum of
	// RSS, all in bytes. Linux does not update the maximum at every change, so it may be some pages too low.
	RSS       int64 `json:"rssBytes"`
	Anonymous int64 `json:"anonymousBytes"`
	PeakRSS   int64 `json:"peakRSSBytes"`
	// Reads and Writes count read and write system calls, including those on sockets. They are 0 if the kernel does
	// not count them.
	Reads  int64 `json:"readCalls"`
	Writes int64 `json:"writeCalls"`
}

// Usage reads the process's figures.
func (p Process) Usage() (Usage, error) {
	if p.PID == 0 {
		return Usage{}, nil
	}
	cpu, err := p.CPU()
	if err != nil {
		return Usage{}, err
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID))
	if err != nil {
		return Usage{}, fmt.Errorf("process: %w", err)
	}
	// Only the owner may read this file, so another user's server reports no calls.
	calls, _ := os.ReadFile(fmt.Sprintf("/proc/%d/io", p.PID))
	return Usage{
		CPU: cpu,
		RSS: Figure(status, "VmRSS:") << 10, Anonymous: Figure(status, "RssAnon:") << 10, PeakRSS: Figure(status, "VmHWM:") << 10,
		Reads: Figure(calls, "syscr:"), Writes: Figure(calls, "syscw:"),
	}, nil
}

// CPU returns the user and system time of all threads, from the process's own clock.
func (p Process) CPU() (time.Duration, error) {
	cpu, err := processClock(p.PID)
	if err != nil {
		return 0, fmt.Errorf("process: %d: %w", p.PID, err)
	}
	return cpu, nil
}

// OwnCPU returns the CPU time that this process has used.
func OwnCPU() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage) // fails only for invalid arguments
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// Figure returns the number after key in a /proc file, 0 if there is none.
func Figure(file []byte, key string) int64 {
	_, rest, _ := bytes.Cut(file, []byte(key))
	var n int64
	_, _ = fmt.Fscan(bytes.NewReader(rest), &n)
	return n
}

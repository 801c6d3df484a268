package bench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// clockTick is the unit of CPU times in /proc: 1/100 s on every Linux that Go
// supports.
const clockTick = 10 * time.Millisecond

// Process reads what a process of this machine has used. The zero Process
// stands for a server elsewhere and reports nothing.
type Process struct {
	// PID is the process id, 0 for none.
	PID int
}

// Usage is what a process has used since it began.
type Usage struct {
	// CPU is user and system time, in steps of 10 ms.
	CPU time.Duration
	// RSS is the resident memory now, PeakRSS its maximum, in bytes.
	RSS, PeakRSS int64
}

// Usage reads the process's figures from /proc.
func (p Process) Usage() (Usage, error) {
	if p.PID == 0 {
		return Usage{}, nil
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID))
	if err != nil {
		return Usage{}, fmt.Errorf("bench: %w", err)
	}
	cpu, err := cpuTime(stat)
	if err != nil {
		return Usage{}, err
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID))
	if err != nil {
		return Usage{}, fmt.Errorf("bench: %w", err)
	}
	return Usage{CPU: cpu, RSS: memory(status, "VmRSS:"), PeakRSS: memory(status, "VmHWM:")}, nil
}

// cpuTime adds utime and stime, the 14th and 15th fields of /proc/PID/stat.
// The second field, the program's name, may hold spaces and parentheses.
func cpuTime(stat []byte) (time.Duration, error) {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("bench: /proc stat has %d fields", len(fields))
	}
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("bench: /proc stat: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick, nil
}

// memory returns the bytes of one line of /proc/PID/status, 0 if absent.
func memory(status []byte, key string) int64 {
	_, rest, found := bytes.Cut(status, []byte(key))
	if !found {
		return 0
	}
	fields := bytes.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	kib, err := strconv.ParseInt(string(fields[0]), 10, 64)
	if err != nil {
		return 0
	}
	return kib << 10
}

package main

import (
	"fmt"
	"os"
	"strconv"

	"k8s.io/klog/v2"
)

// monitorSlack is by how many nanoseconds Linux may delay the Go runtime's monitor thread. The default is 50 µs.
const monitorSlack = "1000000"

// slowMonitor raises the timer slack of the Go runtime's monitor thread, so that Linux wakes it less often. After an
// idle process gets work, this thread sleeps for 20 µs at a time, and longer only after 50 rounds. A server with short
// bursts of work repeats these rounds all the time (N1). The slack delays the preemption of goroutines that run for
// more than ten milliseconds or block in a system call. Threads that the monitor starts inherit the slack, so their
// timers may also be late.
//
// Without CAP_SYS_NICE, or without Linux, slowMonitor changes nothing.
func slowMonitor() {
	if err := setMonitorSlack(); err != nil {
		klog.V(2).InfoS("The runtime's monitor thread keeps its timer slack", "reason", err)
	}
}

func setMonitorSlack() error {
	monitor, err := monitorThread()
	if err != nil {
		return fmt.Errorf("larder: finding the monitor thread: %w", err)
	}
	if err := os.WriteFile("/proc/"+strconv.Itoa(monitor)+"/timerslack_ns", []byte(monitorSlack), 0); err != nil {
		return fmt.Errorf("larder: %w", err)
	}
	return nil
}

// monitorThread returns the id of the first thread that the runtime has started. This is the monitor
// (runtime/proc.go, main).
func monitorThread() (int, error) {
	self, err := os.Readlink("/proc/self") // unlike os.Getpid, in the process namespace of /proc
	if err != nil {
		return 0, err
	}
	main, err := strconv.Atoi(self)
	if err != nil {
		return 0, err
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return 0, err
	}
	const ids = 1 << 22 // at most; after the highest id, Linux continues with the lowest that is free
	monitor, least := 0, ids
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err != nil {
			return 0, err
		}
		if later := (id - main + ids) % ids; later > 0 && later < least {
			monitor, least = id, later
		}
	}
	return monitor, nil
}

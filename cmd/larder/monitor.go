package main

import (
	"fmt"
	"os"
	"strconv"

	"k8s.io/klog/v2"
)

// monitorSlack is by how many nanoseconds Linux may delay the Go runtime's monitor thread. The default is 50 µs.
const monitorSlack = "1000000"

// slowMonitor lets Linux wake the Go runtime's monitor thread less often. Each time an idle process gets work, this
// thread begins to sleep 20 µs at a time, and doubles that only after 50 rounds. The default slack makes 20 µs 70. A
// server whose work comes in short bursts repeats the 50 rounds all the time (N1). The monitor also starts further
// threads when a system call outlasts a round. The slack delays what the monitor does for goroutines that block in a
// system call or run for more than ten milliseconds. Threads that the monitor starts inherit the slack, so their
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

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/larder-io/larder/internal/proctest"
)

// TestMonitorThread checks that the thread is the runtime's monitor: it wakes up again and again while a goroutine
// computes.
func TestMonitorThread(t *testing.T) {
	monitor, err := monitorThread()
	if err != nil {
		t.Fatal(err)
	}
	before := switches(t, monitor)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const computing = 100 * time.Millisecond // of CPU time, because this process may get little of it
	for end := proctest.OfThread.Now(t) + computing; proctest.OfThread.Now(t) < end; {
	}
	if woken := switches(t, monitor) - before; woken < 5 {
		t.Errorf("thread %d woke up %d times in 100 ms, so it is not the monitor", monitor, woken)
	}
}

// TestMonitorSlack checks that Linux has the slack of the monitor thread.
func TestMonitorSlack(t *testing.T) {
	err := setMonitorSlack()
	if errors.Is(err, fs.ErrPermission) {
		t.Skip("Linux lets only processes with CAP_SYS_NICE change the slack of another thread")
	}
	if err != nil {
		t.Fatal(err)
	}
	monitor, err := monitorThread()
	if err != nil {
		t.Fatal(err)
	}
	slack, err := os.ReadFile(fmt.Sprintf("/proc/%d/timerslack_ns", monitor))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(string(slack)); got != monitorSlack {
		t.Errorf("the slack is %s ns, want %s", got, monitorSlack)
	}
}

// switches returns how often a thread has waited.
func switches(t *testing.T, thread int) (n int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", thread))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "\nvoluntary_ctxt_switches:")
	if _, err := fmt.Sscan(rest, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

package proctest

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// CPUClock is a clock of the system that counts CPU time. A loaded machine changes it little, and the
// least of several tries is the cost of the work.
type CPUClock int32

// The clocks of the thread that does the work, and of the process, for work that several
// goroutines do.
const (
	OfThread  CPUClock = unix.CLOCK_THREAD_CPUTIME_ID
	OfProcess CPUClock = unix.CLOCK_PROCESS_CPUTIME_ID
)

// Now is the CPU time so far.
func (c CPUClock) Now(t testing.TB) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(c), &ts); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

// Work is the least CPU time that fn takes, of several tries.
func (c CPUClock) Work(t testing.TB, fn func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	least, all := time.Duration(1<<63-1), time.Duration(0)
	for i := 0; i < 5 && (i < 2 || all < growthPatience); i++ {
		began := c.Now(t)
		fn()
		took := c.Now(t) - began
		least, all = min(least, took), all+took
	}
	return least
}

const (
	// GrowthSteps is how often CheckGrowth doubles the input.
	GrowthSteps = 3
	// growthSlack is the tolerance: caches overflow, buffers grow, the collector takes its part.
	// After all steps, quadratic work exceeds linear work 8 times.
	growthSlack = 4
	growthFloor = 5 * time.Millisecond // less says nothing
	// growthPatience is how much CPU all tries may take before they are enough.
	growthPatience = 100 * time.Millisecond
	// growthTries is how often too much growth is measured before it is believed.
	growthTries = 5
)

// CheckGrowth fails t where eight times as much input takes more than eight times the
// work, within a tolerance, each time that it is measured: the process may have other work for a while.
// prepare returns the work on input of size n.
func (c CPUClock) CheckGrowth(t testing.TB, n int, prepare func(n int) func()) {
	t.Helper()
	if raceDetector {
		t.Skip("the race detector's own work does not grow as that of what it looks at")
	}
	if testing.Short() {
		t.Skip("large inputs take seconds")
	}
	for range growthTries {
		small := c.Work(t, prepare(n))
		large := c.Work(t, prepare(n<<GrowthSteps))
		t.Logf("%d: %v, %d: %v (%.1f times)", n, small, n<<GrowthSteps, large, float64(large)/float64(small))
		if large <= growthSlack*max(small, growthFloor)<<GrowthSteps {
			return
		}
	}
	t.Errorf("%d times as much takes more than %d times the work", 1<<GrowthSteps, growthSlack<<GrowthSteps)
}

package proctest

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// CPUClock is a system clock that counts CPU time, which hardly depends on the load of the machine.
type CPUClock int32

// OfThread counts the CPU time of the calling thread. OfProcess counts the time of all threads, for work of several
// goroutines.
const (
	OfThread  CPUClock = unix.CLOCK_THREAD_CPUTIME_ID
	OfProcess CPUClock = unix.CLOCK_PROCESS_CPUTIME_ID
)

// Now returns the CPU time used so far.
func (c CPUClock) Now(t testing.TB) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(c), &ts); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

// Work calls fn several times and returns the least CPU time of a call.
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
	// growthSlack is the tolerance for CPU caches, growing buffers and the garbage collector. Quadratic work
	// is 8 times linear work after GrowthSteps.
	growthSlack = 4
	// growthFloor is the least CPU time of the small input; shorter times are not exact.
	growthFloor = 5 * time.Millisecond
	// growthPatience is the CPU time after which Work stops calling fn.
	growthPatience = 100 * time.Millisecond
	// growthTries is how many measurements in a row must show too much growth.
	growthTries = 5
)

// CheckGrowth fails t if the CPU time of the work grows faster than its input, within a tolerance. prepare
// returns the work on an input of size n. The second input is eight times as large as the first. CheckGrowth
// measures several times, because the process may do other work meanwhile.
func (c CPUClock) CheckGrowth(t testing.TB, n int, prepare func(n int) func()) {
	t.Helper()
	if RaceDetector {
		t.Skip("the race detector's own work grows in another way")
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
	t.Errorf("an input %d times as large takes more than %d times the CPU time", 1<<GrowthSteps, growthSlack<<GrowthSteps)
}

// Iterations returns the number of iterations of a comparison of random input: a third of n, but at least 1, with -short
// and in builds with the race detector, otherwise n.
func Iterations(n int) int {
	if RaceDetector || testing.Short() {
		return max(n/3, 1)
	}
	return n
}

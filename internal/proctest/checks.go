package proctest

import (
	"flag"
	"testing"
)

// Fewer returns a third of n, but at least 1, with -short and in builds with the race detector, and otherwise n. Like
// FewerChecks, it is for comparisons of random input.
func Fewer(n int) int {
	if raceDetector || testing.Short() {
		return max(n/3, 1)
	}
	return n
}

// FewerChecks lets property tests make a third of their checks until t ends, in builds with the race detector. These
// look for races, and builds without it for differences.
func FewerChecks(t testing.TB) {
	checks := flag.Lookup("rapid.checks")
	if !raceDetector || checks == nil || checks.Value.String() != checks.DefValue {
		return
	}
	if err := flag.Set("rapid.checks", "33"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = flag.Set("rapid.checks", checks.DefValue) })
}

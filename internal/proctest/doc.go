// Package proctest runs processes for tests: servers that a test starts, stops,
// kills and starts again.
//
// A [Process] belongs to a test. It is killed at the test's end, and on Linux by the kernel when the
// test binary dies first. Its standard output and error are kept. Start and the methods that end the
// process may be called from one goroutine at a time, all others from any goroutine.
//
// A test binary can be the process itself: [Role] runs it again with an environment variable that its
// TestMain reads.
//
// No other test, even of another binary, gets the [Ports] of a test until it ends.
//
// [Main] checks that tests leave no goroutines behind.
package proctest

// Package proctest runs processes for tests: servers that a test starts, stops,
// kills and starts again.
//
// A [Process] belongs to a test. It is killed at the test's end, and on Linux by the kernel when the
// test binary dies before that. Its standard output and error are kept. All methods may be called
// from any goroutine, but Start and the methods that end the process only from one at a time.
//
// A test binary can be the process itself: [Role] makes it run again with a variable
// in its environment, which its TestMain looks for.
//
// [Ports] belong to one test until it ends, also among tests of other binaries.
package proctest

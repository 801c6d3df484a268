// Package proctest runs processes for tests: servers that a test starts, stops,
// kills and starts again.
//
// A [Process] belongs to a test. It is killed at the test's end, and by the kernel
// when the test binary dies before that (on Linux). What it writes to its standard
// output and error is kept. All methods may be called from any goroutine, but Start
// and those that end the process only from one at a time.
//
// A test binary can be the process itself: [Role] makes it run again with a variable
// in its environment, which its TestMain looks for.
//
// [Ports] are of no use to other tests while a test has them, in whatever binary.
package proctest

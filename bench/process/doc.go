// Package process reads what processes of this machine use: CPU time, memory and system
// calls, as /proc and the processes' own clocks tell.
//
// A [Process] is a value and owns nothing. Nothing is kept between two readings, no lock is
// taken and no goroutine started. What the system does not tell is 0; a process that is gone
// is an error.
package process

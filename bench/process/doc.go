// Package process reads the CPU time, memory and system calls of processes on this machine.
// It reads /proc and the CPU clocks of the processes.
//
// A [Process] is a value. The package keeps nothing between two readings, takes no lock and
// starts no goroutine. A figure that the system does not report is 0; a process that has ended
// is an error.
package process

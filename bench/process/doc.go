// Package process reads the CPU time, memory and system calls of processes on this machine.
// It reads /proc and the CPU clocks of the processes.
//
// The package keeps no state, takes no lock and starts no goroutine. A figure that the system does not report is 0.
// Reading a process that has ended is an error.
package process

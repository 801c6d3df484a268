// Package heap keeps the garbage collector's percentage fitting to what lives.
//
// Nearly all that lives is encoded objects, without pointers: collecting is cheap, and the
// runtime's own habit of letting the heap double would cost as much memory as the objects
// themselves. GOMEMLIMIT, or debug.SetMemoryLimit, goes on to count.
//
// The percentage is the process's: one call of [Govern] at a time has it. It starts no
// goroutine.
package heap

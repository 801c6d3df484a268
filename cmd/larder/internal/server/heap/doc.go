// Package heap keeps the garbage collector's percentage (GOGC) fitting to the live heap.
//
// Nearly all of the live heap is encoded objects, without pointers: collecting is cheap, and
// the runtime's default of letting the heap double would cost as much memory as the objects
// themselves. How much may be allocated between two collections is a part of the live heap. Where
// collections would cost much otherwise, it is more, for a large heap all of it. GOMEMLIMIT, or
// debug.SetMemoryLimit, still applies.
//
// The percentage belongs to the process: only one call of [Govern] may run at a time. The
// package starts no goroutine.
package heap

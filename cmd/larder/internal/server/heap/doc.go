// Package heap adjusts the garbage collector's percentage (GOGC) to the live heap.
//
// Most of the live heap is encoded objects without pointers, which are cheap to collect. With Go's
// default, garbage would need as much memory as the objects. This package lets the process allocate only a fraction
// of the live heap between two collections, and more while collections would cost much
// CPU. GOMEMLIMIT and debug.SetMemoryLimit still apply.
//
// The percentage belongs to the process: only one call of [Govern] may run at a time. The
// package starts no goroutine.
package heap

// Package inject injects the faults of package faults into a server: it holds the rules, decides what happens
// to a request, and keeps the events of watches back.
//
// The filter in package httpapi asks [Faults.Plan] for each request that is authorized. Without rules
// that costs one atomic load. A [Plan] says how the request is refused, how far a read is behind, and
// whether an answer is lost. Package streams passes the deliveries of a watch through a [Watch], unless
// that is idle.
//
// # Memory
//
// Clients decide how many watches are held, how much they hold, and what requests look like. Faults limits all
// of these, in total and not for each watch. A watch polls events only while none of those that it holds may
// be sent, so a watch that nothing holds back keeps no more than one batch.
//
// # Locks
//
// Faults.mu guards everything. While it is held, a watch may be woken, which takes the lock of the
// scheduler of package streams. No other lock is taken.
package inject

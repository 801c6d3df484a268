// Package inject injects the faults of package faults into a server: it holds the rules, decides about each
// request, and holds back the events of watches.
//
// The filter in package httpapi calls [Faults.Plan] for each authorized request. Without rules this costs one atomic
// load. A [RequestFaults] says how the request is refused, how far a read lags, and whether a response is lost. Package
// streams passes the deliveries of a watch through a [Watch], unless that is idle.
//
// # Memory
//
// Clients decide how many watches are held, how much they hold, and what requests look like. Faults limits all
// of these, in total and not for each watch. A watch first sends the held events that it may send, and only then polls
// more. So a watch that nothing holds back keeps at most one batch.
//
// # Locks
//
// Faults.mu guards everything. While it is held, a watch may be woken, which takes the lock of the
// scheduler of package streams. No other lock is taken.
package inject

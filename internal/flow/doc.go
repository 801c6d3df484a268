// Package flow limits how many requests are served at once: [Control] is API priority and fairness.
//
// Upstream's controller decides on the first request of a kind, and on requests that may have to wait. For the
// others Control only counts seats, with the same result and less CPU (E7). Upstream's metrics count all requests.
// A free request takes no seat. Watches that resume with few events are free: after a restart, thousands of them
// arrive at once. Each is served quickly, but together they would overflow the queues, and retries of rejected watches
// cost more than the watches. A user has at most 64 free requests at once.
//
// # Locks
//
// The lock of upstream's controller > queueSet.mu > the locks of upstream's queues. Control's mu is a leaf.
//
// # Goroutines
//
// [Control.Run] follows the configuration. Each request that upstream's controller decides on has a goroutine while
// it is served.
package flow

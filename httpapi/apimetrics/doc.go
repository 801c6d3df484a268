// Package apimetrics counts what the server does, under the names of kube-apiserver's
// metrics where it has them, and serves /metrics.
//
// Upstream's metrics belong to the process and are told little: a [Monitor] tallies what is read
// and tells them only of what failed, [Access] counts who was authenticated, what was authorized
// and what passed the filters between. A [Page] adds both to upstream's when it is asked for, by
// names and labels. Collectors read what caches hold when they are asked.
//
// Counting takes no lock and allocates nothing.
package apimetrics

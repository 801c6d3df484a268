// Package apimetrics counts what the server does, under the names of kube-apiserver's
// metrics where it has them, and serves /metrics.
//
// Upstream's metrics belong to the process and are told little: a [Monitor] tells them the
// first request of each kind and tallies those that follow, [Access] counts who was
// authenticated and what was authorized, and both are added when a [Page] is asked for.
// Collectors read what caches hold when they are asked.
//
// Counting takes no lock and allocates nothing.
package apimetrics

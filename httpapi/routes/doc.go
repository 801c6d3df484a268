// Package routes finds the endpoint of a resource, or the handler of another path, in a routing [Table].
//
// An [Installer] builds an [Endpoint] for each endpoint of the registry, as upstream's installer does: a
// [reads.Resource] serves reads from encoded bytes, a [writes.Endpoint] serves writes, and upstream's
// handlers serve the rest. Upstream's handlers are wrapped with the checks of upstream's router and its
// metrics.
//
// A Table does not change after it is published.
package routes

// Package routes is what requests are routed by: a [Table] of the endpoints of resources and
// of paths that name none.
//
// An [Installer] builds an [Endpoint] for each endpoint of the registry, as upstream's installer does: a
// [reads.Resource] answers reads from encoded bytes, a [writes.Endpoint] serves writes, and upstream's
// handlers serve the rest, behind the checks of upstream's router and its metrics.
//
// A Table is written before it is published and never after.
package routes

// Package routes is what requests are routed by: a [Table] of the endpoints of resources and
// of paths that name none.
//
// An [Installer] turns the registry's endpoints into what serves them, as upstream's installer
// does: a [reads.Resource] for what is read from encoded bytes, and upstream's handlers for
// the rest, behind what upstream's router refuses and upstream's metrics.
//
// A Table is written before it is published and never after.
package routes

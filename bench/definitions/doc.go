// Package definitions measures what definitions of custom resources cost an API server.
//
// [Run] starts etcd and a server over it, and in turn: makes definitions; waits until all of
// them are discovered, are listed in the index of OpenAPI v3 and answer lists; reads the
// document of OpenAPI v2 until it has them all, and those of OpenAPI v3; makes, reads and lists
// one object of each; and starts the server again, so that what a definition costs is seen
// that nobody asks for. Each kind of server has an etcd of its own.
//
// Memory is told as the live heap after a garbage collection, which servers say at
// /debug/pprof/heap, and as what is resident. All goroutines end before Run returns.
package definitions

// Package crds measures the cost of CRDs in an API server.
//
// [Run] starts each server with its own etcd. It creates CRDs and waits until discovery and the index of OpenAPI v3
// contain them all, and the server serves a list of each. It reads the document of OpenAPI v2 until it contains them
// all, and the documents of OpenAPI v3. It creates, reads and lists one object of each. Then it restarts the server to
// measure the cost of unused CRDs.
//
// Memory is the live heap after a garbage collection, read from /debug/pprof/heap, and the
// resident memory. All goroutines end before Run returns.
package crds

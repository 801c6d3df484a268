// Package crds measures the cost of CRDs in an API server.
//
// [Run] starts etcd and a server over it. It creates CRDs and waits until all are discovered, are
// in the index of OpenAPI v3 and answer lists. It reads the document of OpenAPI v2 until all are
// in it, and the documents of OpenAPI v3. It creates, reads and lists one object of each. Then it
// starts the server again, which measures the cost of unused CRDs. Each server has an etcd of its
// own.
//
// Memory is the live heap after a garbage collection, read from /debug/pprof/heap, and the
// resident memory. All goroutines end before Run returns.
package crds

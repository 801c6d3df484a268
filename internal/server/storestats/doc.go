// Package storestats says how a store is, and what is asked of it.
//
// [Health] answers health checks: it asks once a second at most, however many want to know.
// [Metrics] counts what is asked of etcd, under upstream's names.
//
// Everything may be used from any goroutine. Locks are leaves; a size is asked for under that
// of Metrics, so that many who want to know it cost one question. The package starts no
// goroutine.
package storestats

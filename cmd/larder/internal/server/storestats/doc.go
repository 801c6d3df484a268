// Package storestats checks the health of a store and counts its requests.
//
// [Health] answers health checks: it reads the store at most once a second, however many
// checks there are. [Metrics] counts requests to etcd, under upstream's names.
//
// Everything may be used from any goroutine. Locks are leaves. Metrics holds its lock while it
// asks for the size of the database, so that concurrent scrapes ask once. The package starts
// no goroutine.
package storestats

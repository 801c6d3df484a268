// Package storestats checks the health of a store and counts its requests.
//
// [Health] serves health checks. It reads the store at most once a second, regardless of the number of
// checks. [Metrics] counts requests to etcd, under upstream's names.
//
// All types are safe for concurrent use. Locks are leaves. Metrics holds a lock while it
// reads the size of the database, so that concurrent scrapes read it once. Collect starts goroutines and waits for them.
package storestats

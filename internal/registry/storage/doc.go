// Package storage reads and writes the objects of one resource in the store, caches them, and serves watchers.
//
// # Model
//
// A [Resource] has a cache, a reflector that keeps the cache current, and a hub that serves watchers.
// [Resource.Get], [Resource.List] and [Resource.Watch] return cached, encoded objects. [Resource.Storage]
// implements upstream's storage.Interface over the same data: it writes, and reads decoded objects. A Resource
// without a cache is read from the store.
//
// # Guarantees
//
// Keys and stored bytes are kube-apiserver's. Freshness, rejected revisions and error texts match kube-apiserver with
// its watch cache: a read without resourceVersion sees all earlier writes. After the store was replaced, no response
// mixes objects of both histories (await.go, issued.go).
//
// A corrupt object fails only the reads that cover it. An update is skipped as unchanged only if it equals bytes
// just read from the store, not from the cache. A [ConsistencyChecker] reloads caches that differ from the store.
//
// # Goroutines
//
// [Resource.Run] starts a reflector and a hub, and returns when both have ended. A watch through
// storage.Interface has a goroutine, which ends when the watch is stopped or ends, or its context ends. A list
// of encrypted values in the store decrypts them on goroutines that it waits for.
//
// # Locks and bytes
//
// All locks are leaves, and none is held while a cache is read. The objects that Get, List and a [Written]
// return belong to the cache and are shared: do not modify them.
package storage

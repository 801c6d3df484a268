// Package storage keeps the objects of one resource in the store and in a cache that follows
// the store, and serves their watchers.
//
// # Model
//
// A [Resource] has a cache, a reflector that keeps the cache current, and a hub that serves
// watchers. It is read in two ways: [Resource.Get], [Resource.List] and [Resource.Watch]
// return cached objects, still encoded; [Resource.Storage] is upstream's storage.Interface
// over the same, with decoded objects of the caller's own, and writes. A Resource without a
// cache is read from the store; so are records that are no API objects.
//
// # Guarantees
//
// Keys and stored bytes are kube-apiserver's own. How fresh an answer is, which revisions
// are refused and with which texts, is as in kube-apiserver with its watch cache: a read
// without resourceVersion has seen all that was written before it. After the store was
// replaced, no answer mixes objects of both histories (await.go, issued.go).
//
// A corrupt object fails the reads that cover it and no others. Whether an update changes
// anything is decided by bytes read from the store, never by the cache's. A [Checker]
// finds caches that hold other objects than the store, and loads them again.
//
// # Goroutines
//
// [Resource.Run] starts a reflector and a hub, and returns when both have ended. A watch
// that was opened through storage.Interface has a goroutine of its own, which ends when the
// watch is stopped or its context ends.
//
// # Locks and bytes
//
// No lock is held while a cache is read. Objects that Get and List return belong to the
// cache, are shared and never written. So do those that a [Written] returns, which are what
// writes have made for the cache: answers to writes are made of them as those to reads are.
package storage

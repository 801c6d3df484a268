// Package mirror keeps all keys under a prefix of a store in memory, and serves reads and watches of them. It connects
// packages kv, cache and watch. An API server has one [Mirror] for each resource.
//
// # Model
//
// A Mirror is a Cache of the keys under a prefix, the Reflector that keeps it current, and the
// Hub that serves its watchers: the lower half of the diagram in package kv. The Tail is either the Mirror's own
// or shared by several Mirrors under one prefix, which then share one watch of the store.
//
// # Guarantees
//
//   - [Mirror.ConsistentSnapshot], [Mirror.Get] and [Mirror.List] see every write by any client that the store
//     acknowledged before the call. A call reads the store's revision; concurrent callers share that read.
//   - [Mirror.Snapshot] returns the current state of the cache, without waiting. A later
//     Snapshot is never older, unless the store was replaced.
//   - A Snapshot is exact: the state of the prefix at its revision.
//   - A watcher that begins with a Snapshot, or after its revision, delivers all later changes
//     in order, each once. A watcher that would miss a change ends; its caller then starts again
//     with a Snapshot.
//
// See packages [kv], [cache] and [watch] for more.
//
// # Bytes
//
// Objects are shared by all readers and never written. The decode function may keep its value, unless
// Config.DecodeCopies is set, and must not write to it.
//
// # Locks and goroutines
//
// A Mirror has no lock. [Mirror.Run] starts all goroutines and waits for them. The caller runs the
// store, and a Tail that several Mirrors share.
package mirror

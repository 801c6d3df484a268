// Package mirror keeps all keys under a prefix of a store in memory, and serves reads and watches of
// them.
//
// It connects packages kv, cache and watch, and adds nothing else. A server over etcd has one
// [Mirror] for each of its resources.
//
// # Model
//
//	store --kv.Tail--> kv.Subscription --cache.Reflector--> cache.Cache --> watch.Hub --> watchers
//
// A Mirror is a Cache of the keys under a prefix, the Reflector that keeps it current, and the
// Hub that serves its watchers. The Tail is either the Mirror's own or shared by several Mirrors below
// one prefix, which then share one watch of the store.
//
// # Guarantees
//
//   - [Mirror.Fresh], [Mirror.Get] and [Mirror.List] see every write that was acknowledged
//     before the call, by any client of the store. A call costs the store one read of its
//     revision, which all callers at the same time share.
//   - [Mirror.Snapshot] returns the present state of the cache, without waiting. Of two that
//     are taken one after the other the second is never older, until the store is replaced.
//   - A Snapshot is exact: the state of the prefix at its revision.
//   - A watcher that begins with a Snapshot, or after its revision, delivers all later changes,
//     in order, each once. A watcher that would miss a change ends; its caller then begins again
//     with a Snapshot.
//
// The docs of packages [kv], [cache] and [watch] say more.
//
// # Bytes
//
// Objects are shared by all readers and never written. The decode function may keep the
// value that it is passed, and must not write to it.
//
// # Locks and goroutines
//
// A Mirror has no lock. [Mirror.Run] starts all goroutines and waits for them. The caller runs the
// store, and a Tail that several Mirrors share.
package mirror

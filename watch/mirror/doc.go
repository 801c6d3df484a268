// Package mirror ties a store, a prefix and a function that decodes into one thing that is
// read and watched: all keys under the prefix, in memory, as fresh as its readers ask.
//
// It is how a program uses packages kv, cache and watch together, and holds nothing but
// what ties them. A server over etcd has one [Mirror] for each of its resources.
//
// # Model
//
//	store --kv.Tail--> kv.Subscription --cache.Reflector--> cache.Cache --> watch.Hub --> watchers
//
// A Mirror is a Cache of the keys under a prefix, the Reflector that keeps it current, and the
// Hub that tells its watchers. The Tail is either the Mirror's own or shared by several
// Mirrors below one prefix, which then take one watch of the store together.
//
// # Guarantees
//
//   - What [Mirror.Fresh] gives, and what [Mirror.Get] and [Mirror.List] read, holds every
//     write that was acknowledged before the call, by whomever. It costs the store one read
//     of its revision, which all who ask at the same time share.
//   - [Mirror.Snapshot] gives what is at hand, without waiting. Of two that are taken one
//     after the other the second is never older, until the store is replaced.
//   - A Snapshot is exact: the state of the prefix at its revision.
//   - A watcher that begins with a Snapshot, or after its revision, is told what happened
//     since, in order, each change once. What it may miss ends it; it begins again then.
//
// The packages say more: [kv], [cache], [watch].
//
// # Bytes
//
// Objects are shared by all who read them and never written. What the decode function is
// given may be kept, and must not be written.
//
// # Locks and goroutines
//
// There are no locks of its own. [Mirror.Run] starts all goroutines and waits for them;
// the store, and a Tail that is shared, are run by whoever made them.
package mirror

// Package builtin makes upstream's REST storages of all built-in groups, including CRDs and APIServices.
//
// # Model
//
// A [Builtin] gets the storages of each group from upstream's provider, in upstream's order. The providers
// get keys, versions and encodings of each resource from the caller's RESTOptionsGetter, which takes them
// from the [StorageFactory]. For the core group, upstream would dial etcd. Here a storage.Interface stores
// the records of node ports, service addresses and live API servers.
//
// # Guarantees
//
// Records have kube-apiserver's keys and encodings, so both servers can share an etcd. New does no I/O and
// starts no goroutine. Writes of services wait until [Builtin.Run] has loaded the allocated addresses.
//
// # Goroutines
//
// Run starts the allocators of service addresses and returns when they have ended.
//
// # Locks
//
// The allocator of node ports holds its mutex across a write to the store, as upstream's
// does. The mutex of [Leases] is a leaf.
package builtin

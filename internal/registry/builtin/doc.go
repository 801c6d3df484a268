// Package builtin makes upstream's REST storages of all built-in groups, including CRDs and APIServices.
//
// # Model
//
// A [Builtin] asks upstream's provider of each group for its storages, in upstream's order. The providers
// ask the caller's RESTOptionsGetter how each resource is stored. It answers with keys, versions and
// encodings from the [StorageFactory]. For the core group, upstream would dial etcd. Here the records of
// node ports, service addresses and living API servers are stored by a storage.Interface.
//
// # Guarantees
//
// Records have kube-apiserver's keys and encodings, so that both can share an etcd. New does no I/O and
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

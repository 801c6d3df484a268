// Package builtin makes upstream's REST storages of all built-in groups: of those in
// k8s.io/kubernetes/pkg/registry, of CRDs and of APIServices.
//
// # Model
//
// A [Builtin] asks upstream's provider of each group for its storages, in the order in which
// upstream installs the groups. Upstream asks, through a RESTOptionsGetter, where each
// resource is stored: the caller answers, with keys, versions and encodings from the
// [StorageFactory]. For the core group upstream would dial etcd itself; here its node ports,
// service addresses, and the leases that show which API servers are alive are kept over a
// storage.Interface.
//
// # Guarantees
//
// Records have kube-apiserver's keys and encodings, so that both can share an etcd. New does
// no I/O and starts no goroutine. A service can be neither created, updated nor deleted
// before [Builtin.Run] has loaded which addresses are taken.
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

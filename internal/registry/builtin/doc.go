// Package builtin makes upstream's REST storages of all built-in groups: of those in
// k8s.io/kubernetes/pkg/registry, of CRDs and of APIServices.
//
// # Model
//
// A [Builtin] asks upstream's provider of each group for its storages, in the order in which
// upstream installs the groups. Upstream asks back, through a RESTOptionsGetter, where each
// resource is stored: that is the caller's, who takes keys, versions and encodings from
// the [StorageFactory]. What upstream would give the core group by dialing etcd is made
// here over a storage.Interface: node ports, addresses of services, and the leases by
// which API servers tell that they are alive.
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

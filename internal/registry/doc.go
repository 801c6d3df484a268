// Package registry serves all built-in API groups of Kubernetes over Larder's store and caches.
//
// Types, defaulting, strategies, validation, allocators and REST storages are upstream's
// (k8s.io/kubernetes/pkg/registry). The storages get Larder's storage.Interface from the Decorator of a
// RESTOptionsGetter. Reads bypass the storages: a [Resource] caches the encoded objects of a stored
// resource, and a [View] returns these bytes in one served version.
//
// # Model
//
// A [Registry] has [Group]s in upstream's order, a Group has versions by priority, and a version has
// [Endpoint]s by name. An Endpoint is a resource or subresource: its REST storage and its entry in discovery,
// which is derived from the methods of the storage. Endpoints of stored resources have a View, and are read
// from the cache if the resource has one. The storage serves all others (reviews, bindings, scale, logs). A
// resource that several groups or versions serve (events, autoscalers) is one Resource with several Views.
//
// Package storage stores and reads the objects of one resource, encoding turns them into bytes, table prints
// them, and builtin makes upstream's REST storages. A [View] connects a resource with the encoders and the
// printer of one version. A [CustomResource] does the same for one state of a CRD.
//
// # Guarantees
//
// Keys and stored bytes are kube-apiserver's, so both servers can share an etcd. New does no I/O and starts no
// goroutine. Run is the first to use the client in Config. New does not change Config, which may be reused.
//
// # Bytes
//
// Items and bodies belong to the cache and are shared: do not write to them. Objects that storage.Interface
// returns belong to the caller.
//
// # Goroutines
//
// Run starts the tails of the stores, all built-in Resources, the allocators of service addresses and the
// consistency checker. It returns when all of them have ended. CustomResource.Run runs one custom resource.
//
// # Locks
//
// Only New writes a Registry; afterwards it is read without locks. The mutex of the list of custom resources
// is a leaf.
package registry

// Package registry has every built-in API group of Kubernetes, its kinds, rules and
// storage, over Larder's store and caches.
//
// Upstream says what Kubernetes means: types, defaulting, strategies, validation,
// allocators and the REST storages of k8s.io/kubernetes/pkg/registry. They are used through
// upstream's own interface, a RESTOptionsGetter whose Decorator returns a storage.Interface.
// Larder's part is what is below that interface, and how reads are served: each stored
// resource is a [Resource], whose objects are kept encoded (package encoding), and each
// served version of it a [View], which returns those bytes.
//
// # Model
//
// A [Registry] holds [Group]s in the order in which upstream installs them, a
// Group its served versions by priority, a version its [Endpoint]s ordered by
// name. An Endpoint is a resource or subresource together with the REST storage
// behind it and what discovery says of it; the latter is derived from what the
// storage can do, as upstream's installer does. Endpoints that are stored have a
// View and so are read from the cache; the others (reviews, bindings, scale, logs)
// go through their storage. Resources that several groups or versions serve
// (events, autoscalers) are one Resource under several Views.
//
// The parts have packages of their own: storage keeps and reads the objects of one
// resource, encoding turns them into bytes, table prints them, builtin makes upstream's
// REST storages. This package connects them: a [View] is a resource, the encoders of one
// version of it, and its printer. A [CustomResource] is the same for one state of a CRD.
//
// # Guarantees
//
// Keys and stored bytes are kube-apiserver's own, so that Larder can share an
// etcd with kube-apiservers. New does no I/O and starts no goroutine. The client
// in Config is first used after Run was called. Config is not changed and may be
// reused.
//
// # Bytes
//
// Items and bodies belong to the cache, are shared by all responses and never written.
// Objects that storage.Interface returns are the caller's own.
//
// # Goroutines
//
// Run starts the tail of the store, what each Resource runs, the allocators of service
// addresses and the consistency checker, and returns when all of them have ended.
//
// # Locks
//
// A Registry is written by New alone and read without locks afterwards, but for the list
// of custom resources, whose mutex is a leaf.
package registry

// Package relay serves reads from caches of the resources of another API server, the upstream, and passes all
// other requests through to it.
//
// # Model
//
// [Relay.Caches] decides from a request and the upstream's version whether a cache may serve the request. Other
// requests go through, and the upstream authorizes them. The server authorizes a cacheable request by the upstream's
// SubjectAccessReview and then calls [Relay.Acquire], which returns the cached resource. If the cache
// is not fresh enough for the request, Acquire returns nil, and the request also goes through.
//
// The first such request makes the relay follow the resource, with a [relay.Store] and a cache of package storage.
// The relay stops following it
//
//   - when nothing has read the resource for a while;
//   - when its CRD changes;
//   - when the upstream refuses to list or watch it;
//   - when the MemoryLimit has no room for it.
//
// Built-in resources are cached as the protobuf messages that the upstream has sent, in this program's
// storage version. The messages keep fields that this program does not know, but it cannot write those as
// JSON. Requests for built-in resources of a newer upstream go through, except in protobuf with Config.CacheNewer. All
// objects of such a cache are from servers of one minor version, because an older server hides newer fields: the relay
// asks for the version on the connection of each response. Custom resources are cached as JSON, one cache per version.
//
// # Guarantees
//
//   - A cache never serves a state older than the resourceVersion in the request. Without one, a list and the
//     initial events of a watch contain everything that the upstream had when the request arrived.
//   - After the upstream has responded to a relay's list or watch with 403, 404 or 405, requests for that resource go through.
//   - Revisions are the upstream's. A watch misses no event, as package watch guarantees.
//   - A client's own credential, or none, goes through unchanged. A request with a client certificate goes through
//     with the relay's credential, which impersonates the certificate's user. Two transports keep them apart: one has no
//     credential, and clients use the other only through impersonatedOnly. The relay's credential must not be the client
//     certificate of a front proxy.
//
// # Locks and goroutines
//
// MemoryLimit.mu > Relay.mu, which is a leaf. Each followed resource has a goroutine that runs its store, tail and
// cache on further ones; two more ask for the upstream's version and watch its CRDs. [Relay.Run] waits for all of them.
// A [Proxy] starts none. [TransportFor] says which goroutines are left behind.
package relay

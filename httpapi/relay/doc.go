// Package relay answers reads from caches of the resources of another API server, the upstream, and passes all
// other requests through to it.
//
// # Model
//
// [Relay.Caches] decides from a request alone whether a cache may answer it. Requests for which it is false go
// through, and the upstream authorizes them. The server authorizes the others by the upstream's
// SubjectAccessReview before it calls [Relay.Acquire], which returns the cached resource, or nothing if that
// is not fresh enough for the request: then it goes through as well.
//
// A resource is followed from its first such request on, by a [relay.Store] and a cache of package storage. It is
// left when nothing has read it for a while, when its CRD changes, and when the upstream refuses to list it.
//
// Built-in resources are cached as the protobuf messages that the upstream has sent, in the version in which
// this program stores them. They keep fields that this program does not know, but JSON cannot be written of
// them: so the built-in resources of a newer upstream go through. Custom resources are cached as JSON, each
// version by itself.
//
// # Guarantees
//
//   - A cache never answers with a state older than the resourceVersion in the request. The initial events of a
//     watch without one, and a list without one, have everything that the upstream had when they were asked for.
//   - After the upstream has answered a relay's list with 403, 404 or 405, requests for that resource go through.
//   - Revisions are the upstream's. A watch misses no event, as package watch has it.
//   - A client's own credential, or none, goes through unchanged. The relay's credential goes only with the
//     impersonation of the user that the client's certificate names. Two sets of transports keep them apart:
//     one has no credential, and the other refuses requests without impersonation. The relay's credential
//     must not be the client certificate of a front proxy.
//
// # Locks and goroutines
//
// Budget.mu > Relay.mu, which is a leaf. Each followed resource has a goroutine that runs its store, tail and cache; two more ask
// for the upstream's version and watch its CRDs. [Relay.Run] waits for all of them. A [Proxy] starts none.
package relay

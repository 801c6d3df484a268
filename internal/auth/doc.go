// Package auth authenticates and authorizes requests, records them, and decides when they
// may be served.
//
// The authenticators and authorizers are kube-apiserver's own libraries, and so are
// their options; this package puts them in order. [Load] reads the files its [Config]
// names and returns an [Auth], whose parts package httpapi calls:
//
//   - Authenticator: front proxies, client certificates, then bearer tokens (token file,
//     service accounts, bootstrap tokens, OpenID providers, a webhook), then anonymous. A
//     credential that no authenticator accepts is an error (401), never anonymous.
//   - Authorizer: system:masters, then the modes in the order given, or those of a
//     configuration file that is followed. The first that decides wins; no opinion at all
//     is a refusal.
//   - Gate: the same with a cache, for every request. A decision of RBAC is cached until the
//     first change of an RBAC object. Those of others are not: the Node authorizer decides
//     quickly, and webhook authorizers have caches of their own.
//   - RuleResolver: what a subject may do, for SelfSubjectRulesReview.
//   - Issuer: signs service-account tokens for TokenRequest.
//
// While a server starts, RBAC and the Node authorizer have not loaded yet what they decide by.
// With [Config].Ended they refuse nothing then: what they do not allow waits for their first
// sync, until its context or the server ends, and fails with [ErrNotSynced], which package
// httpapi answers with 429. After a 403 reflectors of client-go would list everything anew;
// after a 429 they resume. Probes do not wait, what is allowed without these two does not, and
// the Gate of [Revocation] fails at once. After the first sync this costs one atomic load.
//
// [Auth.Follow] keeps upstream's graph for the Node authorizer: which node refers to which
// objects. It decodes the few fields of each pod that the graph needs, from the bytes in the
// cache, and keeps a digest of them.
//
// [Auth.Revocation] is for requests that are served for long, such as watches. It
// authenticates the client again without cached tokens, and says when to do so. It
// distinguishes a refusal from an error: no client loses a right because a webhook is down,
// a provider is not reached or a cache is loading. Authenticators and authorizers in this
// process can be asked alone, so that their decisions need not wait for those of webhooks
// and providers.
//
// [LoadAudit] loads kube-apiserver's audit policy and backends. Package httpapi makes the
// events.
//
// [Flow] is API priority and fairness. Upstream's controller decides on the first request of a
// kind, and on requests that may have to wait. For the others Flow only counts seats, which
// decides the same and costs less (E7). Upstream's metrics count all of them.
//
// Accepted tokens are cached for nine seconds, keyed by an HMAC under a key of this process,
// and package httpapi uses a response for one second more; so are accepted client
// certificates, each for its connection, but not across a change of their authorities, which
// [Auth.Generation] counts. The objects a service-account token is bound to, and the secrets
// of bootstrap tokens, are looked up in process, from the registry's caches, when the token
// is not cached.
//
// # Locks
//
// A queueSet's mu is taken inside the controller's lock, and the locks of upstream's queues
// inside it. Flow's mu is a leaf.
//
// # Goroutines
//
// [Flow.Run] follows the configuration; upstream's controller has goroutines of its own,
// and each request that it was asked about has one for as long as it is served. [Audit.Run]
// runs the audit backend. [Auth.Run] follows the files of authorities and
// configurations and blocks until its context ends; a file that becomes invalid leaves the
// last valid one in force. Upstream's reloaders have goroutines of their own from Load on,
// which Run ends: an Auth must be run, if only with a context that has ended. Those that ask
// OpenID providers and an external signer end with Load's context. [Auth.Follow] has a
// goroutine for each kind that the Node authorizer reads.
package auth

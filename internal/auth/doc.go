// Package auth authenticates, authorizes and audits requests, and limits how many are served at
// once.
//
// The authenticators and authorizers are kube-apiserver's own libraries, with its options. [Load]
// reads the files that its [Config] names and returns an [Auth]. Package httpapi calls its parts:
//
//   - Authenticator: front proxies, client certificates, bearer tokens (token file, service
//     accounts, bootstrap tokens, OpenID providers, a webhook), then anonymous. A credential
//     that no authenticator accepts is an error (401), never anonymous.
//   - Authorizer: system:masters, then the modes in the configured order, or those of a
//     configuration file. The first authorizer with an opinion decides; without any the request
//     is denied.
//   - CachedAuthorizer: the same with a cache, for every request. A decision of RBAC is cached
//     until the first change of an RBAC object. Other decisions are not cached: the Node
//     authorizer is fast, and webhook authorizers have caches of their own.
//   - RuleResolver: lists the rules that apply to a user, for SelfSubjectRulesReview.
//   - Issuer: signs service-account tokens for TokenRequest.
//
// While a server starts, RBAC and the Node authorizer have not loaded their objects yet. With
// [Config].Ended they wait for their first sync instead of denying a request. They fail with
// [ErrNotSynced] if the request or the server ends first, and package httpapi answers 429. After a
// 403 reflectors of client-go would list everything again; after a 429 they resume. Probes, and
// requests that other authorizers allow, do not wait. The local authorizer of [Revocation] fails at
// once. After the first sync all this costs one atomic load.
//
// [Auth.Follow] keeps upstream's graph for the Node authorizer: which node refers to which
// objects. It decodes the few fields of each pod that the graph needs, from the bytes in the
// cache, and keeps a digest of them.
//
// [Auth.Revocation] is for long-running requests, such as watches. It authenticates a client again
// without cached tokens, and says when that is necessary. It distinguishes a refusal from an
// error: no client loses access because a webhook is down, a provider is unreachable or a cache is
// loading. The authenticators and authorizers of this process can be asked alone, so that their
// decisions need not wait for webhooks and providers.
//
// [LoadAudit] loads kube-apiserver's audit policy and backends. Package httpapi makes the
// events.
//
// [Flow] is API priority and fairness. Upstream's controller decides on the first request of a
// kind, and on requests that may have to wait. For the others Flow only counts seats, which
// decides the same and costs less (E7). Upstream's metrics count all of them.
//
// Accepted tokens are cached for nine seconds, keyed by an HMAC under a key of this process, and
// package httpapi reuses a response for one second more. Accepted client certificates are cached
// as long, each for its connection, but not across a change of the CAs ([Auth.Generation]). When a
// token is not cached, the objects that a service-account token is bound to, and the secrets of
// bootstrap tokens, are read from the registry's caches.
//
// # Locks
//
// A queueSet's mu is taken inside the controller's lock, and the locks of upstream's queues
// inside it. Flow's mu is a leaf.
//
// # Goroutines
//
// [Flow.Run] follows the configuration. Upstream's controller has goroutines of its own, and each
// request that it decides on has one while it is served. [Audit.Run] runs the audit backend.
// [Auth.Run] follows CA and configuration files until its context ends; a file that becomes
// invalid leaves the last valid one in force. Upstream's reloaders have goroutines from Load on,
// which Run ends: an Auth must be run, if only with an ended context. The goroutines that ask
// OpenID providers and an external signer end with Load's context. [Auth.Follow] has a goroutine
// for each kind that the Node authorizer reads.
package auth

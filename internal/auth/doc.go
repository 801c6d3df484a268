// Package auth says who a request comes from and what its author may do.
//
// The authenticators and authorizers are kube-apiserver's own libraries, and so are
// their options; this package orders and feeds them. [Load] reads the files its [Config]
// names and returns an [Auth], whose parts the front door calls:
//
//   - Authenticator: front proxies, client certificates, then bearer tokens (token file,
//     service accounts, bootstrap tokens, OpenID providers, a webhook), then anonymous. A
//     credential that no authenticator accepts is an error (401), never anonymous.
//   - Authorizer: system:masters, then the modes in the order given, or those of a
//     configuration file that is followed. The first that decides wins; no opinion at all
//     is a refusal.
//   - Gate: the same for the front door, which asks for every request. A decision of
//     RBAC is remembered until the first change of an RBAC object. What others decide is
//     not: the Node authorizer decides quickly, and webhooks remember by themselves.
//   - RuleResolver: what a subject may do, for SelfSubjectRulesReview.
//   - Issuer: signs service-account tokens for TokenRequest.
//
// The Node authorizer knows which node needs what from [Auth.Follow], which reads of each
// pod the few fields that matter, from the bytes in its cache, and keeps none of it but a
// digest: what is kept is upstream's graph.
//
// [Auth.Revocation] is for what is served for longer than a request takes, such as a watch.
// It authenticates the client again without using remembered tokens, and says when to do
// so. It tells a refusal from a failure to ask: no right is lost because a webhook is down,
// a provider is not reached or a cache is loading. It keeps what is decided in this process
// apart from what others decide, so that the former need not wait for the latter.
//
// [LoadAudit] does the same for audit, which is kube-apiserver's own too: the policy and
// what writes the records. The front door makes them.
//
// [Flow] is API priority and fairness. It asks upstream's controller about the first request
// of a kind, and about those that might have to wait; the others it lets pass by count,
// which costs a fiftieth of a small request (E7) and decides the same.
//
// Accepted tokens are remembered for nine seconds, keyed by an HMAC under a key of
// this process, and the front door takes an answer for one second more; so are
// accepted client certificates, each for its connection, but not across a change of their
// authorities, which [Auth.Generation] counts. The objects a service-account token is
// bound to, and the secrets of bootstrap tokens, are looked up in process, from the
// caches, when the token is not remembered.
//
// # Locks
//
// A lane's mu is taken inside the controller's lock, and the locks of upstream's queues
// inside it. Flow's mu is a leaf.
//
// # Goroutines
//
// [Flow.Run] follows the configuration; upstream's controller has goroutines of its own,
// and each request that it was asked about has one for as long as it is served. [Audit.Run]
// runs what writes records. [Auth.Run] follows the files of authorities and
// configurations and blocks until its context ends; a file that turns bad leaves the last
// good one in force. Upstream's reloaders have goroutines of their own from Load on, which
// Run ends: an Auth must be run, if only with a context that has ended. What asks OpenID
// providers and an external signer ends with Load's context. [Auth.Follow] has a goroutine
// for each kind that the Node authorizer reads.
package auth

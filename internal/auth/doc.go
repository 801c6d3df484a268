// Package auth says who a request comes from and what its author may do.
//
// The authenticators and authorizers are kube-apiserver's own libraries; this
// package chooses, orders and feeds them. [Load] reads the files its [Config]
// names and returns an [Auth], whose parts the front door calls:
//
//   - Authenticator: client certificates, then bearer tokens (token file, service
//     accounts), then anonymous. A credential that no authenticator accepts is an
//     error (401), never anonymous.
//   - Authorizer: the paths of health checks, then system:masters, then the modes
//     in the order given. The first that decides wins; no opinion at all is a refusal.
//   - Gate: the same for the front door, which asks for every request. A decision of
//     RBAC is remembered until the first change of an RBAC object.
//   - RuleResolver: what a subject may do, for SelfSubjectRulesReview.
//   - Tokens: signs service-account tokens for TokenRequest.
//
// [LoadAudit] does the same for audit, which is kube-apiserver's own too: the policy and
// what writes the records. The front door makes them.
//
// [Flow] is API priority and fairness. It asks upstream's controller about the first request
// of a kind, and about those that might have to wait; the others it lets pass by count,
// which costs a fiftieth of a small request (B10) and decides the same.
//
// Accepted tokens are remembered for nine seconds, keyed by an HMAC under a key of
// this process, and the front door takes an answer for one second more; so are
// accepted client certificates, each for its connection. The objects a service-account
// token is bound to are looked up in process, from the caches, when the token is not
// remembered.
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
// runs what writes records. [Auth.Run] watches the client CA's file and blocks until its context ends; a
// file that turns bad leaves the last good one in force. Upstream's reloader has
// goroutines of its own from Load on, which Run ends: an Auth must be run, if
// only with a context that has ended.
package auth

// Package relay assembles a relay: a server that caches the objects of other kube-apiservers, its upstreams.
//
// The upstream authenticates and authorizes users: a relay sends it a TokenReview for a token and a
// SubjectAccessReview for a request. While the upstream is unreachable, the last decisions hold for a limited time.
package relay

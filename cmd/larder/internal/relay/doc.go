// Package relay assembles a relay: a server that caches the objects of other kube-apiservers, its upstreams.
//
// The rights of users are the upstream's. A relay asks it about tokens by TokenReview and about requests by
// SubjectAccessReview. While the upstream is unreachable, the last decisions hold for a limited time.
package relay

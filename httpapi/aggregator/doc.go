// Package aggregator proxies requests to other API servers: it follows APIServices,
// registers those of this server, and checks the availability of the others.
//
// # Model
//
// An APIService names a version of a group. One without a service is local: this server
// answers, by what it has built in or by a CRD, whether there
// is an APIService or not. One with a service is remote: all requests at its path and
// below go to that service, even if this server could answer them. The remote servers are
// one immutable map behind an atomic pointer, which is nil while there are none: loading it
// is all that other requests pay ([Aggregator.Remote]).
//
// Upstream's code is used where it is exported: the controllers of registration, of
// availability, of automatic registration and of discovery (k8s.io/kube-aggregator), the
// transports, the proxy (k8s.io/apimachinery pkg/util/proxy), the resolver of services
// (k8s.io/apiserver pkg/util/proxy). The handler that connects them is not, and is here. So is
// what wishes for the APIServices of CRDs: upstream's controller lists all CRDs for
// each that changes.
//
// # Guarantees
//
// A request has been authenticated, recorded, given a seat by flow control and authorized
// before it comes here. The proxied request has the user's name, UID, groups and extra in
// X-Remote- headers, which clients cannot set, and is sent with this server's own
// certificate; it has no credential of the client. Bodies are neither buffered nor bounded.
// If the APIService is not available, the client gets 503.
//
// Every version that this server has built in, and every one that a CRD serves,
// has a local APIService as soon as the server is ready, so that the list of groups has it.
// Nothing is written if all of them exist.
//
// # Goroutines
//
// [Aggregator.Run] owns the informers and upstream's controllers. Those do not wait for
// their workers: when Run returns they have been told to end. The informer of
// EndpointSlices and the controller that checks the availability of remote servers begin
// with the first APIService that needs them.
//
// # Locks
//
// Aggregator.mu guards what waits for APIServices to become available, and is a leaf. The
// map of routes is replaced whole by the one goroutine that upstream's controller of
// registration has.
package aggregator

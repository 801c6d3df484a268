// Package aggregator proxies requests to other API servers: it follows APIServices, registers those
// of this server, and checks whether the other servers are available.
//
// # Model
//
// An APIService names a version of a group. One without a service is local: this server answers,
// from its built-in resources or a CRD, whether or not the APIService exists. One with a service is
// remote: all requests at its path and below go to that service, even if this server could answer
// them. The remote servers are one immutable map behind an atomic pointer, which is nil while there
// are none. Other requests only load that pointer ([Aggregator.Remote]).
//
// Upstream's code is used where it is exported: the controllers of registration, availability,
// automatic registration and discovery (k8s.io/kube-aggregator), the transports, the proxy
// (k8s.io/apimachinery pkg/util/proxy), and the resolver of services (k8s.io/apiserver
// pkg/util/proxy). The handler that connects them is not exported, and is here. The registration of
// the versions of CRDs is here, too: upstream's controller lists all CRDs for each CRD that changes.
//
// # Guarantees
//
// A request has been authenticated, audited, seated by flow control and authorized before it comes
// here. The proxied request has the user's name, UID, groups and extra in X-Remote- headers, which
// clients cannot set. It is sent with this server's own certificate and has no credential of the
// client. Bodies are neither buffered nor limited. If the APIService is not available, the client
// gets 503.
//
// Every built-in version, and every version that a CRD serves, has a local APIService when the
// server becomes ready. Nothing is written if all of them exist.
//
// # Goroutines
//
// [Aggregator.Run] owns the informers and upstream's controllers. The controllers do not wait for
// their workers: when Run returns, these have been told to end. The informer of EndpointSlices and
// the controller that checks remote servers begin with the first APIService that needs them.
//
// # Locks
//
// pending.mu guards the APIServices that are not available yet, and is a leaf. The one goroutine of
// upstream's registration controller replaces the map of routes.
package aggregator

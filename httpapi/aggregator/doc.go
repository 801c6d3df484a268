// Package aggregator proxies requests to other API servers. It follows APIServices, registers the
// versions of this server, and checks whether the other servers are available.
//
// # Model
//
// An APIService names a version of a group. An APIService without a service is local: this server serves it, from its
// built-in resources or a CRD, whether or not the APIService exists. An APIService with a service is remote: all
// requests at its path and below go to that service, even if this server could serve them. The remote servers are in
// one immutable map behind an atomic pointer. While there are none, requests only load that pointer
// ([Aggregator.Remote]).
//
// The package uses upstream's exported code: the controllers of registration, availability,
// automatic registration and discovery (k8s.io/kube-aggregator), the transports, the proxy
// (k8s.io/apimachinery pkg/util/proxy), and the resolver of services (k8s.io/apiserver
// pkg/util/proxy). It implements the handler that connects them, which upstream does not export. It
// also registers the versions of CRDs, because upstream's controller lists all CRDs for each change.
//
// # Guarantees
//
// The caller has authenticated, audited and authorized a request, and flow control has given it a
// seat. The proxied request has the user's name, UID, groups and extra in X-Remote- headers, which
// clients cannot set. It is sent with this server's own certificate and without the credentials of the
// client. Bodies are neither buffered nor limited. If the APIService is not available, the client
// gets 503.
//
// Every built-in version, and every version that a CRD serves, has a local APIService when the
// server becomes ready. Nothing is written if all of them exist.
//
// # Goroutines
//
// [Aggregator.Run] owns the informers and upstream's controllers. The controllers do not wait for
// their workers: some may still be ending when Run returns. The informer of EndpointSlices and
// the controller that checks remote servers start with the first APIService that needs them.
//
// # Locks
//
// pending.mu guards the APIServices that are not available yet, and is a leaf. Only the goroutine of
// upstream's registration controller replaces the map of routes.
package aggregator

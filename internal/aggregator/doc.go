// Package aggregator hands requests on to other API servers: it follows APIServices,
// registers those of this server, watches over the others, and proxies to them.
//
// # Model
//
// An APIService names a version of a group. One without a service is local: this server
// answers, by what it has built in or by a definition of a custom resource, whether there
// is an APIService or not. One with a service is remote: all requests at its path and
// below go to that service, even if this server could answer them. Who is remote and how
// it is reached is one immutable map behind an atomic pointer, which is nil while nobody
// is: that is what every request pays ([Aggregator.Remote]).
//
// What can be upstream's is: the controllers of registration, of availability, of
// automatic registration and of discovery (k8s.io/kube-aggregator), the transports, the
// proxy (k8s.io/apimachinery pkg/util/proxy), the way to find a service
// (k8s.io/apiserver pkg/util/proxy). Ours is the handler between them, which upstream does
// not export.
//
// # Guarantees
//
// A request has been authenticated, recorded, given a seat by flow control and authorized when it comes here.
// What goes on carries the user's name, UID, groups and extra in X-Remote- headers, which
// clients cannot set, and this server's own certificate; no credential of the client's.
// Bodies are not held back and not bounded. A server whose APIService is not available is
// not asked: clients get 503.
//
// Every version that this server has built in, and every one that a definition serves,
// has a local APIService as soon as the server is ready, by which clients that read the
// group list find it. Nothing is written if all of them are there.
//
// # Goroutines
//
// [Aggregator.Run] owns the informers and upstream's controllers. Those do not wait for
// their workers: when Run returns they have been told to end. The informer of
// EndpointSlices and the controller that asks remote servers how they are begin with the
// first APIService that needs them.
//
// # Locks
//
// Aggregator.mu guards what waits for APIServices to become available, and is a leaf. The
// map of routes is replaced whole by the one goroutine that upstream's controller of
// registration has.
package aggregator

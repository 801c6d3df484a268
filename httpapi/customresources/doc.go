// Package customresources serves custom resources: it follows CRDs, runs upstream's controllers of
// CRDs, and serves requests for the resources that CRDs define.
//
// # Model
//
// Each CRD has a [serving], which says whether and how the CRD is served now. The first request for
// one of its resources builds the backend of the serving: a [registry.CustomResource] and the views
// by which package reads serves GET, LIST and WATCH from encoded bytes.
//
// The storages and request scopes of the versions (package versions) are built once, when they are
// first needed: by a request, mostly a write, or by a stored object that must be decoded. They cost
// more than everything else, and many CRDs are only listed. If they cannot be built, the CRD is not
// served from then on. Two kinds of CRDs do not wait, and have their storages built with the
// backend: those whose storages may fail to build, and those that a webhook converts.
//
// Package writes serves writes by these storages and scopes ([Extensions.Write]). Upstream's handlers
// of single verbs serve reads that do not come from encoded bytes: reads of status and scale,
// and lists and watches that a webhook converts.
//
// A backend belongs to one UID, specification and set of accepted names. When one of them changes, a
// new backend replaces it. The old one finishes its requests in flight, except watches. They end, and
// clients start new ones. A CRD that no request has named costs an entry in a map.
//
// OpenAPI documents describe a CRD when a client requests a document, once for each state of the CRD.
// Upstream's builder describes one sample CRD for each scope and set of subresources. Other CRDs are
// described by that template, with their own names and schema. Upstream's builder describes a CRD
// that the template does not fit. Package openapi keeps the documents.
//
// # Guarantees
//
// Requests see a CRD as the informer last saw it. If the informer has not seen a requested resource,
// the request waits until the informer has reached the store's state at that time ([Extensions.Await]).
// Until the informer has synced, such requests get 503, not 404.
//
// While upstream's finalizer deletes the objects of a CRD, this server creates none: the finalizer
// first waits for the creates that this server has admitted. kube-apiserver does not wait, and a later CRD
// of the same name finds an object that the finalizer missed. Other servers on the same store may still
// create objects until they have seen that the CRD is being deleted, as kube-apiserver does.
//
// # Goroutines
//
// [Extensions.Run] owns the goroutines of the backends. It begins before requests are served and ends
// after. [Extensions.Follow] owns the informer and the controllers. Upstream's controllers do not wait
// for their workers: some may still be ending when Follow returns.
//
// # Locks
//
// Readers take the index of servings from an atomic pointer, which only the informer's handlers
// replace. Extensions.mu guards what Run waits for, and backend.mu its users: both are leaves. A backend
// and its storages are built without a lock.
package customresources

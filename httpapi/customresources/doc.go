// Package extension serves custom resources: it follows their definitions, runs
// upstream's controllers for them, and answers requests for what they define.
//
// # Model
//
// Each definition has a [serving], which knows whether and how the definition is served
// now. The first request for one of its resources builds the serving's generation: a
// [registry.CustomResource] and the views by which package httpapi answers GET, LIST and WATCH
// from encoded bytes. The storages and request scopes of its versions (package versions) are built
// once, by the first request that needs them, mostly a write, or by the first stored object
// that has to be decoded: they cost more than all else, and many definitions are only listed. If
// they cannot be built, the definition is not served from then on. A definition whose storages
// may fail to build, and one that a webhook converts, does not wait: they are built with the
// generation.
//
// Package writes serves writes by those storages and scopes ([Extensions.Write]). Upstream's handlers
// of single verbs serve the reads that are not answered from encoded bytes: those of the status and
// the scale, and lists and watches through a webhook that converts.
//
// A generation belongs to one UID, specification and set of accepted names. When one of
// them changes, a new generation replaces it: requests that have begun end with the old one,
// its watches are ended, and clients start new ones. A definition that no request has named
// costs an entry in a map.
//
// OpenAPI documents describe definitions when a client requests a document, each definition
// once in each of its states. Upstream's builders do so for one definition with placeholders
// of each form (its scope and subresources), and what they make has names put into it and the
// schema of the definition; a definition for which that would not be what they make is left
// to them. Package httpapi keeps the documents, compressed.
//
// # Guarantees
//
// Requests are served by the definition as the informer last saw it. A request for a
// resource that the informer has not seen waits until the informer has seen what the store
// held when the request came ([Extensions.Await]). Such requests are answered 503, not 404, until the informer
// has synced.
//
// When the objects of a definition are deleted with it, none is created any more: the creations
// that this server let in before are awaited first. Upstream's controller does not wait, and an
// object that it misses is found by the next definition of the name. Other servers on the same
// store may still let some in, as theirs do, until they have seen that the definition goes.
//
// # Goroutines
//
// [Extensions.Run] owns those of the generations; it begins before requests are served
// and ends after. [Extensions.Follow] owns the informer and the controllers. Upstream's
// controllers do not wait for their workers: some may still be ending when Follow returns.
//
// # Locks
//
// Readers take the index of servings from an atomic pointer, which only the informer's handlers
// replace. Extensions.mu guards what Run waits for, generation.mu its users, and underway.mu the
// creations under way: all are leaves. A generation is built under no lock, and so are its
// storages.
package customresources

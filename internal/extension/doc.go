// Package extension serves custom resources: it follows their definitions, runs
// upstream's controllers for them, and answers requests for what they define.
//
// # Model
//
// Every definition that is there is a [serving], which knows whether and how it is
// served now. The first request that needs it makes its generation: upstream's handler
// of custom resources (k8s.io/apiextensions-apiserver pkg/apiserver) around that one
// definition, with its storages over a [registry.CustomResource], and the views by which package
// httpapi answers GET, LIST and WATCH from encoded bytes. What objects mean (pruning,
// defaults, validation, conversion, apply) is upstream's code alone.
//
// A generation belongs to one UID, specification and set of accepted names. When one of
// them changes, another takes its place: requests that have begun end with the old one,
// its watches are ended, and clients come back. Until it is asked for, a definition
// costs an entry in a map.
//
// Definitions are described for OpenAPI documents by upstream's builders when somebody
// asks for a document, each once in each of its states. Package httpapi keeps what they
// make, compressed.
//
// # Guarantees
//
// What the definition in our hands says is what requests meet; it is as new as the
// informer's. A request that names a resource which is not known waits until the
// informer has seen what the store held when the request came. Before the definitions
// are known at all such requests are answered 503, not 404.
//
// # Goroutines
//
// [Extensions.Run] owns those of the generations; it begins before requests are served
// and ends after. [Extensions.Follow] owns the informer, the controllers and
// the queue of discovery. Upstream's controllers do not wait for their workers: when
// Follow returns they have been told to end.
//
// # Locks
//
// Extensions.mu guards the map of servings, which readers take from an atomic pointer.
// serving.mu and generation.mu are leaves. A generation is built under no lock.
package extension

// Package versions builds what custom resources are written by: for each version of a CRD that
// is served or stored, the REST storages and the request scopes of the resource, of its status
// and of its scale.
//
// # Model
//
// Custom resources have no Go type. [Build] fills the place of a scheme with what a CRD says: a
// decoder that prunes, coerces and reports unknown fields by the structural schema, a defaulter,
// upstream's converter between versions, and a field manager whose types come from the OpenAPI
// models of the CRD. All of it is composed from upstream's packages, as
// apiextensions-apiserver pkg/apiserver/customresource_handler.go composes it; a test compares the
// answers of both.
//
// Objects that package proof finds valid are not validated by upstream's validator of schemas.
//
// # Guarantees
//
// A [Version] belongs to one specification and set of accepted names of a CRD and is immutable.
// Build does no I/O and starts nothing. It fails if the CRD cannot be served: kube-apiserver then
// answers 500 to each request.
//
// # Locks and goroutines
//
// There are no goroutines. What the strategy proves objects by is made once, by the first write.
package versions

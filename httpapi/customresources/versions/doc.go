// Package versions builds the REST storages and request scopes of custom resources: those of the
// resource, its status and its scale, for each version of a CRD that is served or stored.
//
// # Model
//
// Custom resources have no Go type. In place of a scheme, [Build] makes from a CRD:
//
//   - a decoder that prunes, coerces and reports unknown fields by the structural schema
//   - a defaulter
//   - upstream's converter between versions
//   - a field manager whose types come from the OpenAPI models of the CRD
//
// It composes them from upstream's packages as apiextensions-apiserver pkg/apiserver/customresource_handler.go does. A
// test compares the responses of both.
//
// Upstream's schema validator does not see objects that package crdvalidate finds valid.
//
// # Guarantees
//
// A [Version] belongs to one specification and set of accepted names of a CRD and is immutable.
// Build does no I/O and starts nothing. It fails if the CRD cannot be served: kube-apiserver then
// responds 500 to each request.
//
// # Locks and goroutines
//
// There are no goroutines. A sync.OnceValue makes the checks of a strategy at the first write.
package versions

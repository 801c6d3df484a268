// Package crdvalidate recognizes most valid custom resources without upstream's validator.
//
// # Model
//
// To validate a custom resource, upstream makes validators for each of its values (k8s.io/kube-openapi
// pkg/validation/validate). On updates it compares each value with the one that it replaces, because errors
// of unchanged values are forgiven (apiextensions-apiserver pkg/apiserver/validation/ratcheting.go). Most
// objects are valid, and a single walk can show that. A [Schema] is made once of a version's schema;
// [Schema.Valid] walks the values by it. Only upstream's validator reports errors.
//
// # Guarantees
//
// Valid returns true only for objects in which upstream's validation finds no error, in creates and in
// updates. It may return false for other valid objects. A schema in which forgiving a part can make a value
// invalid (oneOf, not) has no Schema. Constraints of single values (patterns, enums, bounds) are left to upstream's
// validators.
//
// # Locks, goroutines and bytes
//
// There are no locks and no goroutines. A Schema is immutable and refers to the schema that it was made of.
package crdvalidate

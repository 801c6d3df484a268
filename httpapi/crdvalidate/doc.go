// Package crdvalidate recognizes most valid custom resources without upstream's validator.
//
// # Model
//
// To validate a custom resource, upstream creates validators for each of its values (k8s.io/kube-openapi
// pkg/validation/validate). On updates it also compares each value with the old one, because it ignores
// errors in unchanged values (apiextensions-apiserver pkg/apiserver/validation/ratcheting.go). Most
// objects are valid, and a single walk can show that. A [Schema] is built once from a version's schema;
// [Schema.Valid] walks an object by it. Only upstream's validator reports errors.
//
// # Guarantees
//
// Valid returns true only for objects in which upstream's validation finds no error, in creates and in
// updates. It may return false for other valid objects. There is no Schema for a schema in which ignoring an
// error can make a value invalid (oneOf, not). Patterns, most formats and other rare constraints are left to upstream's
// validators.
//
// # Locks, goroutines and bytes
//
// There are no locks and no goroutines. A Schema is immutable. It keeps only strings of the schema that it was built
// from.
package crdvalidate

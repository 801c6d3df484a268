// Package proof proves of custom resources that upstream's validation by their schema would
// find nothing.
//
// # Model
//
// Upstream validates a custom resource by making validators for each of its values
// (k8s.io/kube-openapi pkg/validation/validate), and on updates compares each with the value
// that it replaces, because errors of values that have not changed are forgiven
// (apiextensions-apiserver pkg/apiserver/validation/ratcheting.go). What it says about an
// invalid object is its own. Most objects are valid, and to know that takes one walk: a
// [Schema] is made of a version's schema, once, and [Schema.Proves] walks the values by it.
//
// # Guarantees
//
// Proves reports true only for objects in which upstream's validation finds no error, in
// creations and in updates. It may report false for others as well, and then knows nothing of
// them. A schema in which a value may become invalid because a part of it is forgiven (oneOf,
// not) has no Schema. Of keywords that are rare, upstream's validators are asked.
//
// # Locks, goroutines and bytes
//
// There are no locks and no goroutines. A Schema is immutable; it refers to the schema that
// it was made of.
package crdvalidate

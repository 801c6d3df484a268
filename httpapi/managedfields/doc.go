// Package managedfields computes metadata.managedFields, which has the client that set each field of an object.
//
// # Model
//
// Upstream's field manager (apimachinery pkg/util/managedfields) converts the stored and the new object to values of
// structured-merge-diff, validates both against their schema and walks both completely. This package saves most writes
// that work:
//
//   - A [Cache] copies the managedFields of similar writes. Two creations are similar if their objects
//     have the same fields, keys of maps and keys of list items. Two updates are similar if they start
//     with the same managedFields, come from the same client and change the same fields.
//   - Its Manager is upstream's field manager over values that are not validated. An object of a
//     built-in Go type matches its schema, because the schema is generated from that type. Exceptions are
//     list items without their key fields, and fields of disabled features: upstream validates such objects.
//   - These values know their API version. Upstream would convert the whole object to a map to read it.
//
// An applied configuration is a map, not an object of a Go type. Upstream validates it as always.
//
// # Guarantees
//
// A write results in the managedFields that upstream's field manager computes for it. Builds tagged invariants compare
// each copied result with the field manager's.
//
// # Locks, goroutines and bytes
//
// A Cache is safe for concurrent use. Its lock is a leaf. There are no goroutines. Values share the memory of the
// objects that they are made from and never write to it.
package managedfields

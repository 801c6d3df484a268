// Package managedfields computes metadata.managedFields: which client set which field of an object.
//
// Upstream's field manager converts the stored and the new object to values of structured-merge-diff.
// It validates both against their schema and walks both completely. This package saves most
// writes that work:
//
//   - A [Cache] copies the managedFields of similar writes. Two creations are similar if their objects
//     have the same fields, keys of maps and keys of list items. Two updates are similar if they start
//     with the same managedFields, come from the same client and change the same fields.
//   - [NewManager] returns upstream's field manager over values that are not validated. An object of a
//     built-in Go type matches its schema, which is generated from that type. The exceptions are list
//     items without their key fields and fields of disabled features. Upstream validates objects with
//     such exceptions.
//   - These values know their version. Upstream would convert the whole object to a map to read it.
//
// An applied configuration is a map, not an object of a Go type. Upstream validates it as always.
//
// A manager and a Cache are safe for concurrent use. Values share the memory of the objects that they
// are made from and never write to it.
package managedfields

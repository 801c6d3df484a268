// Package servedjson reports whether stored custom-resource JSON is already in served form, without
// decoding it.
//
// # Model
//
// Upstream decodes a stored custom resource, prunes it, drops nulls, repairs its metadata and sets defaults
// (apiextensions-apiserver pkg/apiserver/customresource_handler.go). For an object that was written under the current
// CRD, these steps change only the resourceVersion. A [Schema] is built once from the structural schema of a version.
// [Schema.Read] walks stored bytes by it.
//
// # Guarantees
//
// Read returns a [Document] only for bytes that upstream's reading and encoding/json would reproduce:
//
//   - members are sorted and unique
//   - strings and numbers are written as encoding/json writes them
//   - nothing would be pruned, and no default is missing
//   - metadata are written as ObjectMeta
//
// Read may return nil for such bytes, too, for example if the CRD embeds other resources.
//
// [Document.Content] returns the maps that decoding would make. [Encode] writes such maps as encoding/json does.
//
// # Locks, goroutines and bytes
//
// There are no locks and no goroutines. A Schema is immutable. A Document refers to the bytes that it was
// read from, which must not change. The results of its methods belong to the caller.
package servedjson

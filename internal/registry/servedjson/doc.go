// Package shape tells, of the JSON of a custom resource, whether reading it would change
// nothing, without decoding it.
//
// # Model
//
// Upstream reads a stored custom resource by decoding it, pruning it, dropping nulls that may
// not be there, repairing its metadata and setting defaults (apiextensions-apiserver
// pkg/apiserver/customresource_handler.go). An object that was written under the definition
// of the moment has been through all that: what reading makes of it is encoded as the very
// bytes that are stored, but for the resourceVersion. A [Shape] is made of the structural
// schema of one version, once. [Shape.Read] walks the bytes by it.
//
// # Guarantees
//
// Read reports true only for bytes that upstream's reading and encoding/json's writing
// would reproduce: members sorted, none twice, texts and numbers written as encoding/json
// writes them, no member that would be pruned, no default missing, metadata as ObjectMeta
// is written. It may report false for such bytes as well, and then knows nothing of them:
// where a definition embeds other resources, for example.
//
// [Document.Content] makes of such bytes the maps that decoding would.
//
// # Locks, goroutines and bytes
//
// There are no locks and no goroutines. A Shape is immutable. A Document refers to the bytes
// that it was read from.
package servedjson

// Package encoding turns what the store holds of a resource into what the cache holds,
// and that into the bytes that clients are sent.
//
// # Model
//
// A [Codec] belongs to one resource. It decodes a stored value once, when the value enters
// the cache, and encodes it as its canonical bytes: the bare protobuf message of the stored
// version, or JSON for a resource of a CRD ([Custom]). A value whose fingerprint is known
// is not even decoded: what comes of that is known to differ in nothing but the
// resourceVersion (fingerprint.go).
//
// A [Version] is a version in which the resource is served. It has an [Encoder] for each
// media type and [Projection]. An Encoder makes items of cached objects: parts of the
// canonical bytes where that will do, JSON written from them by a plan of the kind
// (package transcode), and only else by decoding the object. A [Source] makes the items of
// one list and decides which of them are worth keeping.
//
// # Guarantees
//
// What an Encoder gives out is byte for byte what upstream's encoders write for the same
// object. What it made is kept with the object as long as there is room. A value that
// cannot be decrypted or decoded makes a corrupt object, which fails the reads that cover
// it and no others. [Codec.Decodes] counts decodings of cached bytes.
//
// # Bytes
//
// Bodies and items belong to the cache and are shared by all responses; nobody writes to
// them. Objects that are decoded are the caller's own.
//
// # Locks and goroutines
//
// No goroutines. A Codec and its Versions are built before they are used, and immutable
// then. The locks of an Encoder and of the table of fingerprints are leaves.
package encoding

// Package encoding makes cached objects of stored values, and of those the bytes that are
// sent to clients.
//
// # Model
//
// A [Codec] belongs to one resource. It decodes a stored value once, when the value enters
// the cache, and encodes it as its canonical bytes: the bare protobuf message of the stored
// version, or JSON for a custom resource ([Custom]). A value whose fingerprint is known is
// not even decoded: it is known what decoding and encoding make of it (fingerprint.go).
//
// A [Version] is a version in which the resource is served. It has an [Encoder] for each
// media type and [Projection]. An Encoder makes items of cached objects: where possible they
// are parts of the canonical bytes, or JSON that a plan of the kind writes from those
// (package transcode); otherwise the object is decoded. A [Source] makes the items of one
// list and decides which of them are worth keeping.
//
// # Guarantees
//
// A custom resource whose stored bytes decoding and encoding would not change (package shape)
// is not decoded to be cached, and what requests decode of it is not pruned and defaulted
// again.
//
// What a write compares with ([Codec.Restore]) is what upstream would decode from the store.
//
// Large canonical bytes of custom resources are kept packed (package cache), with their
// metadata beside them: what asks for metadata alone unpacks nothing, and lists and frames
// unpack each item where it goes ([Encoder.Unmade]).
//
// An Encoder's items are byte for byte what upstream's encoders write for the same object.
// They are kept with the object as long as the budget allows. A value that cannot be
// decrypted or decoded becomes a corrupt object, which fails the reads that cover it and no
// others. [Codec.Decodes] counts decodings of cached bytes.
//
// # Bytes
//
// Bodies and items belong to the cache, are shared by all responses and never written.
// Objects that are decoded are the caller's own.
//
// # Locks and goroutines
//
// There are no goroutines. A Codec and its Versions are built before they are used, and
// immutable then. The locks of an Encoder, of the providers of keys and of the table of
// fingerprints are leaves.
package encoding

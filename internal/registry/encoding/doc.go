// Package encoding makes cached objects from stored values, and responses from cached objects.
//
// # Model
//
// A [Codec] belongs to one resource. When a value enters the cache, the Codec decodes it once and encodes
// it in the canonical encoding: the bare protobuf message of the stored version, or JSON for a custom
// resource ([Custom]). Values with a known fingerprint are not decoded at all. A fingerprint is a hash of the value's
// skeleton (skeleton.go, tokens.go); a rule writes the canonical bytes by a template (fingerprint.go, rule.go,
// template.go).
//
// A [Version] is a served version of the resource. It has an [Encoder] for each media type and [Projection], which
// makes items from cached objects. Most items are parts of the canonical bytes, or JSON that package transcode writes
// from them. Other items need a decoded object. An [ItemSource] makes the items of one list and decides which ones to
// cache.
//
// # Guarantees
//
// An Encoder's items are byte for byte what upstream's encoders write for the same object. They are
// cached with the object as long as the budget allows.
//
// Stored custom resources that are already in served form (package servedjson) are cached without
// decoding, and requests decode them without pruning and defaulting.
//
// [Codec.Restore] makes exactly the object that upstream would decode from the store, for comparisons in writes.
//
// Large canonical bytes of custom resources are packed (package cache), with unpacked metadata beside them.
// Requests for metadata unpack nothing. Lists and frames unpack each item into the response
// ([Encoder.PackedSize]).
//
// A value that cannot be decrypted or decoded becomes a corrupt object, which fails only the reads that
// cover it. [Codec.Decodes] counts decodings of cached bytes.
//
// # Bytes
//
// Bodies and items belong to the cache and are shared by all responses: do not write to them. Decoded
// objects belong to the caller.
//
// # Locks and goroutines
//
// Each call to a conversion webhook has its own goroutine, which ends with the call. Nothing waits for it. Readers
// of the object share the call. There are no other goroutines. A Codec and its Versions are safe for concurrent use once
// they are set up. The locks of key providers and rule caches are leaves. The lock around upstream's JSONPath is held
// while CustomConfig.Make runs.
package encoding

// Package wire writes Kubernetes responses around encoded items.
//
// Model. An item is one object as it appears in a list: in protobuf the bare message, in JSON an object
// without kind and apiVersion (PartialObjectMetadata has them). A [Writer] belongs to one kind in one media
// type. It writes what surrounds items: the type of a single object, the header, separators and footer of a
// list, the frame of a watch event. All sizes are known in advance, for Content-Length.
//
// A [Skeleton] is a message without names, times and free text. A [Template] writes and recognizes messages
// with the same skeleton.
//
// Guarantees. A Writer appends exactly what upstream's encoders write for the same objects. Nothing here
// decodes an object: [PartialProtobuf], [Writer].AppendRevision and [MetadataJSON] read no further than the
// top-level metadata.
//
// Locks and goroutines. None: a Writer is immutable and may be shared.
//
// Bytes. Items are only read, and not kept. Functions named Append append to dst and return it.
// PartialProtobuf and MetadataJSON return a part of their input.
package wire

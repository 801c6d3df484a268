// Package wire writes Kubernetes responses around items that are already
// encoded.
//
// Model. An item is one object as it stands inside a list: in protobuf the bare
// message, in JSON an object without kind and apiVersion (PartialObjectMetadata
// keeps them). A [Writer] belongs to one kind in one media type and writes what the media
// type has around items: the typed head of a single object, the header,
// separators and footer of a list, the frame of a watch event. Every size is
// known before the first byte is written, so that a response can have a Content-Length.
//
// Guarantees. What a Writer appends is byte for byte what upstream's encoders
// write for the same objects: the streaming list encoders, the k8s\0 envelope,
// watch frames with their length prefix. [PartialProtobuf], [Writer].AppendRevision
// and [MetadataJSON] read only the bytes on their way to the top-level metadata;
// nothing here decodes an object.
//
// Locks and goroutines. None: a Writer is immutable and may be shared.
//
// Bytes. Items are read and never kept or written. Functions named Append write
// to dst and return it grown; PartialProtobuf and MetadataJSON return a part of
// their input.
package wire

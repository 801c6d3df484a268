// Package wire writes Kubernetes responses around encoded items, and reads and replaces parts of encoded objects.
//
// # Model
//
// An item is one object as it appears in a list: in protobuf the bare message, in JSON an object without kind and
// apiVersion (PartialObjectMetadata has them). A [Writer] belongs to one kind in one media type. It writes the bytes
// around items: the type of a single object, the header, separators and footer of a list, the frame of a watch event.
// Sizes of objects and lists are known in advance, for Content-Length.
//
// [NewIndenter] and [NewYAMLWriter] convert JSON bodies to the other forms in which upstream serves JSON.
//
// # Guarantees
//
// A Writer appends exactly the bytes that upstream's encoders write for the same objects. Functions that read or
// replace the metadata of an object read no further. For bytes that are not an encoded object they return
// [ErrMalformed] or [ErrNoMetadata], or nil if they have no error result.
//
// # Bytes
//
// Items are only read, and not kept. Functions named Append append to dst and return it. Other functions that return
// a part of an object return a slice of their input, unless they say that they copy.
//
// # Locks and goroutines
//
// There are none. A Writer is immutable and may be shared; the other writers belong to one caller.
package wire

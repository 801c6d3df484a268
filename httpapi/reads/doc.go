// Package reads answers GET and LIST of stored resources from encoded bytes.
//
// A [Read] negotiates the media type, validates options in upstream's order, asks the
// registry for objects at the revision that the client asked for, and completes the response
// with their shared bytes between a header and a footer of the request's own. Upstream's
// handlers serve the requests that it does not answer.
//
// # Guarantees
//
// An answer decodes no object that was read in the same form before and is still kept in it.
// Tables are the exception: those of single objects and the few rows that cannot be kept are
// printed. A GET allocates the key of its object, a list nothing for each item.
//
// # Bytes
//
// A list that is being sent holds one chunk and its objects, which its snapshot shares with all
// others. Encoded items belong to the cache: the list asks for them as it sends them, or
// encodes them in its chunk. So clients that read slowly cost no more memory than that. A large
// list in JSON that is indented, or of which not all items are kept, is never in memory as a
// whole, and its length is not announced.
//
// A compressed list of a whole resource or namespace is one gzip member, put together from
// pieces that a [Stitcher] compresses once and keeps, within a bound, while the objects in
// them stay as they are. A piece holds no object in memory and nothing that depends on the
// user. Requests that need the same piece wait for the one that makes it.
package reads

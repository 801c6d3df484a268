// Package reads answers GET and LIST of stored resources from encoded bytes.
//
// A [Read] negotiates the media type, validates options in upstream's order, asks the
// registry for objects at the revision that was asked for, and completes the response with
// their shared bytes between a header and a footer of the request's own. What it does not
// answer goes to upstream's handlers.
//
// # Guarantees
//
// An answer decodes no object that was read in the same form before and is still kept in it.
// Tables are the exception: those of single objects and the few rows that cannot be kept are
// printed. A GET allocates the key of its object, a list nothing for each item.
//
// # Bytes
//
// A list that is being sent holds its objects, which the snapshot that it is of shares with
// all others, and one chunk. What was made of the objects belongs to the cache and is asked
// for as it is sent, or is made in that chunk: clients that read slowly cost no memory but
// for that. A large list in JSON that is not all kept, or indented, is never in one place,
// and its length is not announced.
//
// A compressed list of a whole resource or namespace is one gzip member, put together from
// pieces that a [Stitcher] compresses once and keeps, within a bound, while the objects in
// them stay as they are. A piece holds no object in memory and nothing that depends on who
// asks. Requests that need the same piece wait for the one that makes it.
package reads

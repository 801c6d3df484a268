// Package reads answers GET and LIST of stored resources from encoded bytes.
//
// A [Read] negotiates the media type, validates options in upstream's order, gets the objects at the
// requested revision from the registry, and completes the response with their shared bytes between a
// header and a footer of its own. Upstream's handlers serve the requests that a Read does not
// answer.
//
// # Guarantees
//
// An answer decodes no object whose encoding in the same media type and version is still kept.
// Tables are the exception: those of single objects, and the few rows that cannot be kept, are
// printed. The only allocation of a GET is the key of its object. A list allocates nothing for each item.
//
// # Bytes
//
// A list that is being sent holds one chunk of output, and references to its objects, which its snapshot
// shares with all other lists. Encoded items belong to the cache: the list asks for them as it sends them,
// or encodes them into its chunk. So clients that read slowly cost no more memory. If a large JSON list is
// indented, or if some of its items are not kept, it is never in memory as a whole and has no
// Content-Length.
//
// A compressed list of a whole resource or namespace is one gzip member. A [Stitcher] compresses its
// pieces once and keeps them, within a limit, while the objects in them stay the same. A piece holds
// no object in memory and nothing that depends on the user. Requests that need the same piece wait
// for the one that makes it.
package reads

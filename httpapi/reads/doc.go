// Package reads serves GET and LIST of stored resources from encoded bytes.
//
// A [Read] negotiates the media type and validates the options in upstream's order. It gets the objects at the
// requested revision from the registry, and sends their shared bytes between a header and a footer. Upstream's handlers
// serve all other reads.
//
// # Guarantees
//
// A read decodes no object whose encoding in the same media type and version is cached. Tables are the exception: those
// of single objects, and the few rows that cannot be cached, are printed. A list allocates nothing for each item.
//
// # Bytes
//
// A list that is being sent holds one chunk of output and references to its objects. Encoded items belong to the cache:
// the list requests them as it sends them, or encodes them into its chunk. So slow clients cost no more memory. A large
// list that is YAML, indented, compressed or not completely cached is never in memory as a whole, and has no
// Content-Length. Strings that cannot be YAML are found before such a list is sent. These are in memory as a whole:
//
//   - tables that [table.Printer.Rows] does not make, in JSON;
//   - lists that are YAML, indented or compressed, if they are smaller or the client uses HTTP/1.0;
//   - items that a webhook converts.
//
// A compressed list of a whole resource or namespace is one gzip member. A [Stitcher] compresses its pieces once and
// caches them, within a limit, until their objects change. Pieces beyond the limit are compressed as the list is sent. A
// piece keeps no object in memory and contains nothing that depends on the user. Requests that need the same piece wait
// for the one that makes it.
//
// # Locks and goroutines
//
// The lock of Stitcher is a leaf. The package starts no goroutines.
package reads

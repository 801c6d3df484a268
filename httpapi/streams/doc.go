// Package streams serves requests that have a connection or an HTTP/2 stream to themselves:
// watches, and requests of net/http handlers that run without a time limit or take the connection
// over.
//
// # Watches
//
// [Streams.Watch] opens a watch and takes its connection. After a complete watch over HTTP/1.1 it gives the
// connection back, with the bytes that Sweep has read from it. A watch has a goroutine while it sends
// its head and its initial objects. When nothing is left to send, it is parked: it has neither a
// goroutine nor buffers. When there is something to send, a scheduler runs it on one of the few
// goroutines that all watches share. The ready watches of a connection run one after the other until they
// have filled a batch, and share one write. While a write waits for its client, another
// goroutine may start, so that a slow client does not delay the others. A frame is built once per
// event, type and encoding. A protobuf frame that is a header and the canonical bytes is not
// kept: it is assembled for each watcher.
//
// When the server ends, a watch whose client allows bookmarks ends with one, so that the client
// can continue from the present at any server.
//
// # Rights
//
// A stream may depend on a [Right]. When the right is lost, the stream ends as if it were
// complete. If its client does not read the end, the connection is closed.
//
// # Goroutines
//
// [Streams.Wait] returns when the goroutines that Watch and Serve started have ended, or with its ctx. Sweep
// and EndRevoked run on the goroutines of their callers.
//
// # Locks
//
// Streams.mu and Stream.mu > scheduler.mu. Package watch wakes a watch while it holds its own locks;
// that takes scheduler.mu. Stream.mu is held while the connection is probed or closed, which takes
// the lock of http1's listener or of http2's Conn.
package streams

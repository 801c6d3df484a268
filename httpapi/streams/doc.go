// Package streams serves requests that take over a connection or an HTTP/2 stream: watches, and
// requests whose net/http handlers run without a time limit or hijack the connection.
//
// # Watches
//
// [Streams.Watch] opens a watch and takes over its connection. After a complete watch over HTTP/1.1 it
// returns the connection, with the bytes that Sweep has read from it. A watch has a goroutine while it
// sends its header and its initial objects. When nothing is left to send, it is parked: it has neither a
// goroutine nor buffers. When there is something to send, a scheduler runs it on one of the few
// goroutines that all watches share. The ready watches of a connection run in turn until they
// have filled a batch, and share one write. While a write waits for its client, another
// goroutine may start, so a slow client does not delay the others. A frame is built once per
// event, type and encoding. A protobuf frame that consists of a header and the canonical bytes is not
// kept: it is assembled for each watcher.
//
// When the server stops, a watch whose client allows bookmarks ends with one, unless much is left to
// send. The client can resume from it at any server.
//
// # Rights
//
// A stream may depend on a [Right]. When the right is lost, the stream ends like a complete
// response. If the client does not read the end, its connection is closed.
//
// # Goroutines
//
// [Streams.Wait] returns when the goroutines that Watch and Serve started have ended, or ctx is done. Sweep
// and EndRevoked run on their callers' goroutines.
//
// # Locks
//
// Streams.mu and Stream.mu > scheduler.mu. Package watch wakes a watch with its own locks held;
// the wake-up takes scheduler.mu. Stream.mu is held while the connection is probed or closed, which takes
// the lock of http1's listener or of http2's Conn.
package streams

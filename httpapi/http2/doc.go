// Package http2 serves HTTP/2. A connection carries many requests at the same time, each as a
// stream. The package turns a request into an [exchange.Carrier], and an
// [exchange.Response] into frames. It reads frames, and writes control frames, with
// golang.org/x/net/http2. It handles streams itself, because net/http's server keeps a goroutine
// and buffers for every watch.
//
// # Life of a stream
//
// One goroutine reads a connection. A complete header opens a stream and starts a goroutine that serves it. A handler
// can take over its response and write it piece by piece, as a watch does. The stream's goroutine then ends, so an idle
// watch has none. When the client resets a stream or closes the connection, the contexts of its requests end.
//
// # Writing
//
// A goroutine that writes a response locks Conn.writeMu and writes whole frames: as much of the
// body as the client's windows allow, in pieces that fill a TLS record. If more is to come, a stream's Send keeps
// its data in a buffer of a few records. The next write or [Conn.Flush] sends the buffer, so the events of many watches
// that share a connection are sent in one write.
//
// The reading goroutine does not wait for a client that does not read, unless TLS itself responds to the client, as
// after a KeyUpdate. Its control frames (settings, pings, windows, resets) are queued, and written before writeMu is
// unlocked. If a client does not read, the server ends the response, or the connection, after Config.WriteTimeout.
//
// Header blocks do not use HPACK's dynamic table. Streams may then be written in any order, and
// the length of a block reveals nothing about earlier ones.
//
// # Limits
//
// Everything that a client can hold open has a limit:
//
//   - Streams, and goroutines that make responses: Config.MaxStreams. All goroutines: twice that, because one may wait
//     for the audit log after its response. A stream beyond these limits is refused.
//   - Headers: Config.MaxHeaderBytes for each, and [largeHeaders] times that for all pending requests of a connection.
//     HPACK may expand a header beyond a usual size only to [maxExpansion] times its encoded size.
//   - Bodies: Config.MaxBodyBytes for each, and the window of the connection for all. Memory grows
//     with the data that has arrived, not with the announced length.
//   - Responses that wait for the client: Config.WriteTimeout for each, and the server's memory pool for all.
//   - Frames that only cause work, such as resets, pings, settings and DATA of closed streams: [floodRate]. A client
//     that sends more gets ENHANCE_YOUR_CALM, and its connection ends. A WINDOW_UPDATE wakes only as many writers as
//     its window has room for.
//   - Control frames that the client causes and does not read: [maxControl]. Then the connection ends.
//   - The time until the client has sent its preface or the rest of a header:
//     Config.HeaderTimeout.
//
// # Memory
//
// Each connection counts the bytes that it holds, in any state of its streams: queued, waiting for a window, refused,
// or reset while their handlers still run. Bytes that no handler will read are discarded before the response is sent.
// All connections of the server share a pool for unread requests and for responses that wait for the client. When the
// pool is full, the server closes the connection that holds the most. A connection also has a read buffer of 16 KiB, a
// write buffer of 64 KiB, and HPACK's table of 4 KiB.
//
// # Goroutines
//
// One for each connection; one for each stream until its response has ended or was taken over; one that writes queued
// control frames if no other goroutine holds writeMu. [Conn.Serve] returns after the last of them.
//
// # Locks
//
// Conn.writeMu > Conn.mu > memoryPool.mu. While writeMu is held, frames are written to the
// connection and the [socket.Waiter] of the writer is called. Under Conn.mu, the only calls on the
// connection set a deadline or close the socket.
package http2

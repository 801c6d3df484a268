// Package http2 serves HTTP/2. A connection carries many requests at the same time, and each of
// them is a stream. The package turns a request into an [exchange.Carrier], and an
// [exchange.Response] into frames. It reads frames with golang.org/x/net/http2 and handles them
// itself, because net/http's server keeps a goroutine and buffers for every watch.
//
// # Life of a stream
//
// One goroutine reads a connection. A complete header opens a stream and starts a goroutine
// that serves it. A handler can take its response over and write it piece by piece, as a watch
// does. The goroutine of the stream then ends: an idle watch is a [Stream] and nothing else.
// When the client resets a stream or closes the connection, the contexts of its requests end.
//
// # Writing
//
// A goroutine that writes a response takes the connection's turn and writes whole frames: as
// much of the body as the client's windows allow, in pieces that fill a TLS record. What
// [Stream.SendMore] writes is kept, a few records at most, until something else is sent or
// [Conn.Flush] is called: events of many watches of one connection leave in one write, and so do
// many of one watch. The reading goroutine must never wait for a client that does not read; what
// it has to send (settings, pings, windows, resets) is queued and written at the end of the
// current turn. A response whose client does not take it in is given up after
// Config.WriteTimeout, and so is a connection.
//
// Header blocks are written without HPACK's dynamic table: streams may then be written in any
// order, and the length of a block gives away nothing about earlier ones.
//
// # Limits
//
// Everything that a client can hold open has a limit:
//
//   - Streams, and goroutines that serve them: Config.MaxStreams. A stream beyond that is refused.
//   - Headers: Config.MaxHeaderBytes for each, and [largeHeaders] of that size for all requests of
//     a connection that are not answered. HPACK may expand a header to [expandMost] times its
//     encoded size, beyond a usual size that is always allowed.
//   - Bodies: Config.MaxBodyBytes for each, and the window of the connection for all. Memory grows
//     with what has come, not with the length that the client announces.
//   - Answers that wait for the client: Config.WriteTimeout for each, and the pool of the server.
//   - Frames that only make work, such as resets, pings and settings: [floodRate]. A client that
//     sends more of them gets ENHANCE_YOUR_CALM, and its connection ends.
//   - Control frames that the client causes and does not read: [mostControl]. The connection ends.
//   - The time until the client has sent its preface or the rest of a header:
//     Config.HeaderTimeout.
//
// # Memory
//
// The memory accounting of a connection counts the bytes that it holds, whatever state its streams are in:
// queued, waiting for a window, refused but not yet answered, or reset while their handlers still
// run. Bytes that nobody reads any more are discarded at once, before the answer is sent. Requests
// that no handler has asked for, and answers that wait for the client, also count towards a pool
// that all connections of the server share. When the pool is full, the connection that holds most
// is closed. A connection holds little else: a buffer of 16 KiB to read into, one of 64 KiB to
// write from, and HPACK's table of 4 KiB.
//
// # Goroutines
//
// One for each connection; one for each stream until it is answered or taken over; one while
// queued control frames wait for the turn. [Conn.Serve] returns after the last of them.
//
// # Locks
//
// Conn.writeMu > Conn.mu > memoryPool.mu. No lock is held while another package is called, except for
// writeMu, which is held while frames are written to the connection.
package http2

// Package mux serves HTTP/2: the requests of one connection, which are many at the same
// time, each of them a stream. It turns each into an [exchange.Carrier] and each
// [exchange.Response] into frames. Frames are read by golang.org/x/net/http2; what is done
// about them is decided here, because net/http's server keeps a goroutine and its buffers
// for every watch.
//
// # Life of a stream
//
// One goroutine reads a connection. A complete header opens a stream and starts a goroutine
// that serves it. When a handler takes its response over, to write it piece by piece as a watch
// does, that goroutine ends too: an idle watch is a [Stream] of a few words and nothing else.
// When the client resets a stream or closes the connection, the work for it is cancelled.
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
// # What a client may ask for
//
// These are bounded: streams at a time, the sizes of headers and bodies, and the rate of frames
// that only make work, such as resets, pings and settings. HPACK may expand a header to
// [unfoldMost] times its encoded size, beyond a usual size that is always allowed. A client that
// exceeds a bound gets ENHANCE_YOUR_CALM, and its connection ends.
//
// # Memory
//
// A connection holds the bytes of requests within the budget of its ledger, whatever state its
// streams are in: queued, waiting for a window, refused but not yet answered, or reset while
// their handlers still run. What nobody reads any more is discarded at once, before the answer is
// sent. Bytes that no handler has asked for also count towards a pool that all connections of the
// server share. When that is full, the connection that holds most is closed.
//
// # Goroutines
//
// One for each connection; one for each stream until it is answered or taken over; one while
// queued control frames wait for the turn. [Conn.Serve] returns after the last of them.
//
// # Locks
//
// Conn.turn > Conn.mu > pool.mu. No lock is held while another package is called, except for the
// turn, which is held while frames are written to the connection.
package mux

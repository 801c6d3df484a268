// Package mux serves HTTP/2: the requests of one connection, which are many at the same
// time, each of them a stream. It turns each into an [exchange.Carrier] and each
// [exchange.Response] into frames. Frames are read by golang.org/x/net/http2; what is done
// about them is decided here, because net/http's server keeps a goroutine and its buffers
// for every watch.
//
// # Life of a stream
//
// One goroutine reads a connection. A header that is whole begins a stream and a goroutine
// that serves it. A response that somebody takes over to write it piece by piece leaves
// neither: what is left of a watch that has nothing to tell is a [Stream] of a few words.
// When the client resets a stream or leaves, what is done for it is told to end.
//
// # Writing
//
// Who has something to write takes its turn at the connection and writes whole frames, as
// much of the body as the client's windows let pass, in pieces that fill a TLS record. What
// the reading goroutine has to say, which must never wait for a client that does not read,
// waits for the end of the turn. A response whose client does not take it in is given up
// after Config.WriteTimeout; so is a connection.
//
// Header blocks are written without the dynamic table: they stand in no order, and no secret
// can be guessed by their length.
//
// # What a client may ask for
//
// Streams at once, sizes of headers and bodies, bytes that nobody has read yet, and frames
// that only make work are bounded. A header may unfold to a few times of what was sent for
// it, beyond what is usual. Who does not keep to that is told ENHANCE_YOUR_CALM, and the
// connection ends.
//
// # Goroutines
//
// One for each connection, one for each stream until it is answered or taken over, one while
// something waits for its turn that the reader has to say. [Conn.Serve] returns after the
// last of them.
//
// # Locks
//
// Conn.turn > Conn.mu; body.mu is a leaf. No lock is held while another package is called,
// but for the turn, which is held while something is written.
package mux

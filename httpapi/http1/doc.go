// Package http1 accepts connections, speaks TLS and HTTP/1.1 on them, and
// turns each request into an [exchange.Carrier] and each [exchange.Response] into bytes.
// It hands connections whose clients choose HTTP/2 to package http2. It is the only importer
// of fasthttp, and knows nothing of what requests mean.
//
// # Life of a connection
//
// A [Server] serves connections of the network, on which it puts TLS, and connections from
// within the process, which need no network. The number of connections can be bounded, in all
// and from one address. The handshake must be over in ten seconds. A visit holds what the
// server knows of a connection while it is served, by either protocol.
//
// A [Session] serves the requests of one connection, one after the other. A header is
// bounded in size and time and parsed by fasthttp once it is whole. Buffers grow with it and
// are given back between requests: a connection that waits keeps a small stack and little
// beside TLS's state, less than fasthttp's own server keeps (D3). That is why this package has
// its own loop; a request costs as much as with fasthttp's (D1, D2), and so does a connection
// that was taken over (D4). The session refuses a header that two readers could read in two
// ways.
//
// A body is read when the handler asks for it. The session reads and drops what the handler
// left of it before it writes the answer, if that is small; else the connection ends.
//
// # Bytes
//
// A Carrier returns parts of fasthttp's buffers, which are valid until the exchange ends.
// Builds that check invariants overwrite them then. A response's length is known before its
// first byte, or its end is marked.
//
// # Goroutines
//
// Each connection has one until it is closed or a handler takes it over. ServeNetwork,
// ServeMemory and CutStalled run on the goroutines of their callers. Abort returns after the
// last connection has ended.
//
// # Locks
//
// The lock of the accept loop and the listener's guard the sets of open connections. Neither is held while
// anything is written or another lock is taken.
package http1

// Package front is the door: it accepts connections, speaks TLS and HTTP/1.1 on them, and
// turns each request into an [exchange.Carrier] and each [exchange.Response] into bytes.
// Connections whose clients choose HTTP/2 it leaves to package mux. It is the only importer
// of fasthttp, and knows nothing of what requests mean.
//
// # Life of a connection
//
// A [Server] serves connections of the network, on which it puts TLS, and connections from
// within the process, which need no network. How many there may be, in all and from one
// address, is bounded; where there is no room, one that waits for a request gives way to a
// newcomer. The handshake must be over in ten seconds. What is known of a connection while
// it is served, by whichever protocol, is a visit.
//
// A [Session] serves the requests of one connection, one after the other. A header is
// bounded in size and time and parsed by fasthttp once it is whole. Buffers grow with it and
// are given back between requests: a connection that waits keeps a small stack and little
// beside TLS's state, less than fasthttp's own server keeps (D3). That is what the loop is
// for; a request costs as much as there (D1, D2), and so does a connection that was taken over
// (D4). A header that two readers could read in two ways is refused.
//
// A body is read when somebody asks for it. What nobody wanted of it is passed over before
// the answer if it is small; else the connection ends.
//
// # Bytes
//
// What a Carrier returns are fasthttp's buffers, which end with the exchange. Builds that
// check invariants overwrite them then. A response's length is known before its first byte,
// or its end is marked.
//
// # Goroutines
//
// One for each connection, as long as it is open or until somebody takes it over, and those
// of the callers of ServeNetwork, ServeMemory and CutStalled. Abort returns after the last
// connection.
//
// # Locks
//
// The door's and the listener's guard what is open. Neither is held while anything is
// written or another is taken.
package front

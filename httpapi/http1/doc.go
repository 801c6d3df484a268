// Package http1 accepts connections, speaks TLS and HTTP/1.1 on them, and turns each request into an [exchange.Carrier]
// and each [exchange.Response] into bytes. It passes connections whose clients choose HTTP/2 to package http2. It is
// the only importer of fasthttp, and does not interpret requests.
//
// # Life of a connection
//
// A [Server] serves TLS connections from the network, and connections from this process through
// memory. The number of connections can be limited, in all and from one address. The TLS
// handshake must end within the time of a header.
//
// A [Session] serves the requests of one HTTP/1.1 connection, one after the other. A header is limited in size and
// time, and fasthttp parses it once it is complete. Buffers grow with the header and return to a pool between requests.
// An idle connection keeps a small stack and little beside TLS's state, less than with fasthttp's own server loop (D3).
// Requests (D1, D2) and connections that were taken over (D4) cost as much as with that loop. The session rejects a
// header that two parsers could read differently.
//
// A body is read when the handler asks for it. Before it writes the response, the session reads and discards the rest
// of a small body. The connection ends after a request with a large unread body, and after a large response to a
// request whose body has not arrived.
//
// The session ends when a handler takes over its connection. When a streamed response to a GET without a body is
// complete, its owner returns the connection, with the bytes that it has read meanwhile, and another session serves it.
// After other streamed responses, and during shutdown, the connection ends.
//
// # Bytes
//
// A Carrier returns parts of fasthttp's buffers, which are valid until the exchange ends. Builds tagged invariants then
// overwrite them. A response's length is known before its first byte, or its end is marked.
//
// # Goroutines
//
// Each connection has a goroutine while it is served, and none after a handler has taken it over. ServeNetwork,
// EndDisconnected and CloseStalled run on the goroutines of their callers. Abort returns after the last connection has
// ended.
//
// # Locks
//
// A listener's lock guards its set of open connections. A session's lock guards the functions to call at the end of its
// request. Both are leaves: while one is held, nothing is written and no other lock of this package is taken.
package http1

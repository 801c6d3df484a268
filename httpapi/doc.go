// Package httpapi serves the Kubernetes API over HTTP: it passes each request through authentication, audit, flow
// control and authorization, and routes it to the package that serves it.
//
// # Life of a request
//
//  1. Package http1 accepts a connection, does the TLS handshake and reads a request's header. It
//     rejects a header that two parsers could read differently. Later code does not see the
//     connection or the HTTP library, but an [exchange.Exchange]: the request, its user, its
//     deadline and the response.
//  2. One parser makes a [request.Request] from method and target. Routing and authorization read
//     only this value. Until the client is authenticated, the work for a request is proportional
//     to the length of its header.
//  3. From here until the response, a panic ends only this request.
//  4. A request that is not long-running gets a deadline: the server's or ?timeout=, whichever is
//     shorter.
//  5. The client is authenticated. Rejected credentials never make a request anonymous. The audit
//     policy decides how much of the request is recorded. If the request impersonates another
//     user, and its sender may do so, it continues as that user.
//  6. Flow control gives the request a seat, after a wait if necessary, or rejects the request. A request
//     keeps its seat until its response is written, or, if the response is small, until just before. A
//     watch keeps its seat until its initial objects have been sent. A watch that resumes needs no seat if
//     the cache of its resource is loaded and has few events to send.
//  7. The authorizer decides about the Request before it is routed. If the server is
//     configured to publish storage versions, it rejects most writes until it has done so.
//  8. A [routes.Table] routes the Request. Package reads serves GET and LIST of a stored resource
//     from encoded bytes. Package writes serves writes. Package streams opens a WATCH, takes over
//     the connection and frees the other memory of the request.
//  9. A net/http handler serves everything else: mostly upstream's, or one of discovery, openapi
//     and apimetrics. Package nethttp runs it on copies of everything that it may keep. The handler's
//     URL is built from the Request, so it reads what was authorized.
//  10. The server reads a body only when a handler does, so a client whose request is forbidden
//     uploads nothing.
//  11. http1 or http2 writes the Response to the connection, and charges the request to its account
//     in package costs. A watch is charged at each write.
//
// # Guarantees
//
// A client gets kube-apiserver's responses, including error texts. Either a response's length is known before its first
// byte, or its end is marked, so a client can detect a truncated response. Shared bytes contain nothing that depends on
// the user.
//
// A GET, LIST or WATCH of a cached resource decodes no object whose requested encoding is cached, except:
//
//   - a single Table;
//   - a watch that upstream's handlers serve;
//   - a response that the audit policy records.
//
// # Goroutines
//
// [Server.Run] owns all goroutines and returns after the last has ended:
//
//   - those of http1, streams, nethttp and revocation;
//   - two that detect disconnected clients;
//   - one that reports the number of requests, and one that sums up costs;
//   - at shutdown, one that closes stalled connections and one that ends watches.
//
// A handler may outlive its request's deadline. [Front.Run] starts and awaits the goroutines of its own
// http1 server.
//
// # Locks
//
// The package has no locks. Requests are routed by an immutable table behind an atomic pointer.
//
// # Bytes
//
// The bytes of a header belong to the HTTP server, and are copied before anything keeps them. An exchange
// ends with its handler. Bytes from the cache and the registry are shared: do not modify them.
package httpapi

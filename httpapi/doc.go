// Package httpapi serves the Kubernetes API over HTTP: it takes each request through
// authentication, audit, flow control and authorization, and routes it to the code that
// answers it.
//
// # Life of a request
//
//  1. Package http1 accepts a connection, speaks TLS on it, reads a request's header and refuses it
//     if two parsers could understand it differently. No code after that sees the connection
//     or the HTTP library. It sees an [exchange.Exchange]: the request, its user, its deadline and
//     the response.
//  2. One parser makes a [request.Request] of the method and target. Routing and
//     authorization read nothing else. Until the client is authenticated, the work for a
//     request is proportional to its header's length.
//  3. From here to the answer a panic goes no further than the request.
//  4. A request that is not long-running gets a deadline: the server's or, if it is shorter,
//     that of ?timeout=.
//  5. The client is authenticated. A request whose credentials are not accepted is never
//     treated as one without credentials. Then the audit policy says how much of the request
//     is recorded, from there on up to the end of its answer. If the request impersonates
//     another user, and its requester may do so, that user takes the requester's place.
//  6. Flow control gives the request a seat, for which it may have to wait, or refuses it. A
//     request keeps its seat until its answer has been written, or just before if the answer is
//     small. A watch keeps it until its initial objects have been sent.
//  7. The authorizer decides about the Request before anything is looked up. Until the server
//     has published its storage versions, if it is configured to, most writes are refused.
//  8. A table of routes routes the Request. Package reads answers GET and LIST of a stored
//     resource from encoded bytes. Package writes answers writes. Package streams opens a WATCH,
//     which takes the connection and releases the rest of the request.
//  9. Everything else goes to a net/http handler: upstream's mostly, or one of discovery,
//     openapi and apimetrics. Package nethttp runs it, with copies of all
//     that it may keep. Its URL is built from the Request: the handler reads what was authorized.
//  10. A body is read when a handler first asks for it and not before: a client whose request
//     is forbidden uploads nothing.
//  11. http1 or http2 writes the Response to the connection, and charges the request to its
//     account in costs. A watch is charged each time that it is written to.
//
// # Guarantees
//
// A client gets the answers that kube-apiserver gives, to the text of errors. An answer to
// GET, LIST or WATCH of a cached resource decodes no object that was read in the same form
// before and is still kept in it, unless the audit policy wants the answer recorded. A
// response's length is known before its first byte, or its end is marked: a client can tell
// a complete answer from one cut short. Shared bytes hold nothing that depends on the user.
//
// # Goroutines
//
// [Server.Run] owns all of them and returns after the last: those of http1, streams, nethttp
// and revocation, one that looks for clients that left, one that reports how many requests
// there are, one that adds up what they cost. A handler may outlive its request's deadline, and
// then keeps nothing but itself alive.
//
// # Locks
//
// All are leaves: none is held while another is taken or while anything is written.
// Requests are routed by an immutable table behind an atomic pointer.
//
// # Bytes
//
// The header's bytes belong to http1 and are copied before anything keeps them; an exchange
// ends with its handler. Bytes from the cache and the registry are shared by all and only read.
package httpapi

// Package httpapi speaks Kubernetes over HTTP: it takes each request through the chain of
// who asks, what is recorded, when it is served and whether it may be, and hands it to what
// answers it.
//
// # Life of a request
//
//  1. front accepts a connection, speaks TLS on it, reads a request's header and refuses it
//     if two readers could read it in two ways. From here on no code sees the connection or
//     the HTTP library, but an [exchange.Exchange]: the request, who sent it, until when,
//     and the response.
//  2. Method and target become a [request.Request], by one parser. Routing and
//     authorization read nothing else. All this, and whatever else is read before it is
//     known who asks, takes work in proportion to the header's length.
//  3. From here to the answer a panic goes no further than the request.
//  4. What is not long-running gets a deadline: the server's or, if it is shorter,
//     that of ?timeout=.
//  5. The user is authenticated, and replaced by another if one is impersonated. A
//     credential that is not accepted is never taken for none. Then the audit policy is
//     asked, and what it wants to know of the request is recorded from there on, up to
//     the end of its answer.
//  6. Flow control gives it a seat among the requests that are served at once, for
//     which it may have to wait, or refuses it. It keeps its seat until its answer has
//     been written, a watch until it has been told what there is.
//  7. What the Request says is authorized, before anything is looked up.
//  8. The Request is routed, by a table of routes. reads answers GET and LIST of a stored
//     resource from encoded bytes, streams opens a WATCH, which takes the connection and
//     gives the rest of the request back.
//  9. Everything else goes to a net/http handler: upstream's mostly, or one of discovery,
//     openapi and apimetrics. handlers runs it, with copies of all that it may keep. Its URL
//     is written anew from the Request: what the handler reads there is what was
//     authorized.
//  10. A body is read when a handler first asks for it and not before: a client that may
//     not do what it asks uploads nothing.
//  11. front writes what it finds in the Response.
//
// # Guarantees
//
// What a client can observe is what kube-apiserver answers, to the text of errors.
// An answer to GET, LIST or WATCH of a cached resource decodes no object that was read
// in the same form before and is still kept in it, unless the audit policy wants the
// answer recorded. A response's length is known before its first byte, or its end is marked:
// a client can tell a whole answer from one cut short. Shared bytes hold nothing that
// depends on who asks.
//
// # Goroutines
//
// [Server.Run] owns all of them and returns after the last: those of front, streams, handlers
// and revocation, one that looks for clients that left, one that reports how many requests
// there are. A handler may outlive its request's deadline, and then keeps nothing but itself
// alive.
//
// # Locks
//
// All are leaves: none is held while another is taken or while anything is written.
// What requests are routed by is an immutable table behind an atomic pointer.
//
// # Bytes
//
// What the door read is copied before anything keeps it; an exchange ends with its
// handler. What the cache and the registry give is shared by all and only read.
package httpapi

// Package httpapi speaks Kubernetes over HTTP: it reads requests, decides what each
// is and whether it may be, and answers it, from encoded bytes where it can.
//
// # Life of a request
//
//  1. A connection is accepted ([Server.Run]), TLS is spoken on it, within ten
//     seconds and for HTTP/1.1 only. A header is bounded in size and time and parsed by
//     fasthttp once it is whole; what cannot be read is answered 400, 408, 417 or 431.
//     The buffers grow with the header and are given back between requests.
//  2. The header block is inspected, and refused if two readers could read it in
//     two ways. Method and target become a [request.Request], by one parser. Routing and
//     authorization read nothing else. All this, and whatever else is read before it is
//     known who asks, takes work in proportion to the header's length.
//     From here on nobody sees the connection or the HTTP library, but an
//     [exchange.Exchange]: the request, who sent it, until when, and the response.
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
//  8. The Request is routed. GET, LIST and WATCH of a stored resource are answered
//     here: the media type is negotiated, options are validated, the registry gives
//     objects at the revision that was asked for, and their shared bytes are written
//     with a header and a footer of the request's own. A WATCH takes the connection
//     and gives the rest of the request back.
//  9. Everything else goes to a net/http handler, upstream's mostly, on a goroutine
//     of its own, with copies of all that it may keep. Its URL is written anew from the
//     Request: what the handler reads there is what was authorized. Its answer is held
//     back until it is whole or too large; a handler that streams gets the connection.
//  10. A body, bounded in size and time, is read when a handler first asks for it and not
//     before: who may not do what he asks uploads nothing. What nobody wanted of it is
//     passed over before the answer if it is small; else the connection ends.
//
// # Guarantees
//
// What a client can observe is what kube-apiserver answers, to the text of errors.
// An answer to GET, LIST or WATCH of a cached resource decodes no object that was read
// in the same form before and is still kept in it, unless the audit policy wants the
// answer recorded. Tables are the exception: those of single objects, those in watches
// and the few rows that cannot be kept are printed. A response's length is known before
// its first byte, or its end is marked: a client can tell a whole answer from one cut
// short. Shared bytes hold nothing that depends on who asks.
//
// # Goroutines
//
// [Server.Run] owns all of them and returns after the last: one per
// connection, one per upgraded connection, one per request of a net/http handler, one
// that looks for clients that left, one that reports how many requests there are. A
// connection that waits for a request keeps little beside TLS's state: a small stack and
// no buffer. A handler may outlive its request's deadline, and
// then keeps nothing but itself alive.
//
// By what right watches are open, one goroutine looks after. It waits for no answer: what
// it has to ask is asked on up to eight others, and on up to 64 where webhooks or providers
// of tokens are asked. Rights that are decided here end at once, however slow those are.
//
// A watch has a goroutine while it sends its head and its initial objects. Then it is
// parked: it has none until there is something to tell, and then a turn on one of the
// few that all watches share. A write that has to wait for its client makes room for
// another goroutine, so that a slow client costs the others nothing.
//
// # Locks
//
// All are leaves: none is held while another is taken or while anything is written. A
// watch is woken under the locks of package watch, which takes the queue's.
// What requests are routed by is an immutable table behind an atomic pointer.
//
// # Bytes
//
// What fasthttp read is copied before anything keeps it; an exchange ends with its
// handler. What the cache and the registry give is shared by all and only read.
package httpapi

// Package exchange passes requests from the HTTP servers, which read them, to the code that answers them, and
// passes the responses back.
//
// An HTTP server hands a [Carrier] to the handler and gets an [Exchange] back: the request, its
// user, its deadline, and a [Response]. The response is a header and a body, or a function that
// takes the connection over. The code that answers knows no HTTP library, and the HTTP servers do
// not know what a request means. So the same code answers requests of every version of HTTP with the
// same bytes.
//
// # What an exchange holds
//
// An [AuditRecord] records the request. A [Seat] counts it as one that is being served. [Deadlines] give
// requests that begin at about the same time one context. All move with the request to the goroutine
// that serves it after the exchange has ended.
//
// # Bytes
//
// Bytes that a Carrier returns are valid until the exchange ends. Bytes of a response are shared and
// not changed. A [ChunkWriter] gathers small pieces into writes of whole TLS records. It comes from
// a pool, and Release returns it. Gzip writers are pooled, too. [Exchange.SendObject] answers with
// one object, for reads and writes.
//
// # Errors
//
// Only this package and upstream's handlers turn errors into responses: into the Status that
// kube-apiserver answers, in the media type that the client accepts.
package exchange

// Package exchange passes requests from the HTTP servers, which read them, to the code that answers them, and
// passes the responses back.
//
// An HTTP server hands a [Carrier] to the handler and gets an [Exchange] back: the request, its
// user, its deadline, and a [Response]. The response is a header and a body, or a function that
// takes over the connection. The code that answers uses no HTTP library, and the HTTP servers do
// not interpret requests. So the same code answers requests of every HTTP version with the
// same bytes.
//
// # What an exchange holds
//
// An [AuditRecord] records the request. A [Seat] counts it as being served. Both move with the request to the
// goroutine that serves it after the exchange has ended.
//
// # Bytes
//
// Bytes that a Carrier returns are valid until the exchange ends. Bytes of a response are shared and
// not changed. A [ChunkWriter] gathers small pieces into writes of whole TLS records. It comes from
// a pool, and Release returns it. Gzip writers are also pooled. [Exchange.SendObject] answers with
// one object, for reads and writes.
//
// # Errors
//
// Only this package and upstream's handlers turn errors into responses: into kube-apiserver's Status,
// in the media type that the client accepts.
package exchange

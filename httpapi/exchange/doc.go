// Package exchange connects the HTTP servers with the code that serves requests.
//
// An HTTP server passes a [Carrier] to the handler, which returns an [Exchange]: the request, its user, its deadline,
// and a [Response]. The response is a header and a body, or a function that takes over the connection. Handlers use no
// HTTP library, and the HTTP servers do not interpret requests. So the same code serves requests of every HTTP version
// with the same bytes.
//
// # What an exchange holds
//
// An [AuditRecord] records the request. A [Seat] counts it as being served. Both can move to a goroutine that serves
// the request after the exchange has ended.
//
// # Bytes
//
// Bytes that a Carrier returns are valid until the exchange ends. Bytes of a response are shared and not changed. A
// [ChunkWriter] gathers small pieces into writes of whole TLS records. It comes from a pool, and Release returns it.
// Gzip writers are also pooled. [Exchange.SendObject] sends one object, for reads and writes.
//
// # Errors
//
// Only this package and upstream's handlers turn errors into responses: into kube-apiserver's Status,
// in the media type that the client accepts.
package exchange

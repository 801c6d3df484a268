// Package exchange is the seam between a door, which reads requests and writes responses,
// and the code that answers them.
//
// A door hands a [Carrier] to the server and gets an [Exchange] back: the request, its user,
// its deadline, and a [Response] that is a header and a body, or a function that takes the
// connection over. Nothing on this side of the seam knows the HTTP library, and nothing
// beyond it knows what a request means; so the same code answers requests of every version of
// HTTP, with the same bytes.
//
// # What an exchange holds
//
// A [Trail] records it for the audit log. A [Place] counts it as one of the requests that
// are served at once. [Deadlines] give requests of about the same time one context. Each of
// them is handed on with the request to the goroutine that serves it after the exchange has
// ended.
//
// # Bytes
//
// Bytes that a Carrier returns are valid until the exchange ends. Bytes of a response are
// shared and not changed. A [ChunkWriter] gathers small pieces into writes of whole TLS
// records; it comes from a pool and is given back with Release. Writers of gzip are pooled,
// too. [Exchange.SendObject] answers with one object, whether it was read or written.
//
// # Errors
//
// An error becomes a response here and nowhere else, apart from upstream's handlers: as the
// Status that kube-apiserver answers, in the form that the client accepts.
package exchange

// Package backend bounds what kubelets, pods and services may do to the server that asks
// them: a connection to one that has changed protocols, or is asked to, ends with its
// request, and brings nothing to nobody.
//
// Upstream's proxies read the head of an answer to an upgrade from the bare connection, for
// as long as it takes and of whatever length, and do not look whether anybody waits for it.
// [Transport] therefore has such connections opened in its own way: they are closed when
// the request's context ends, and when more than [MaxUnheard] bytes have come of which the
// client was sent nothing. Both are known from the request's context, which [NewContext]
// makes. Other requests go as they went before: net/http's transport bounds heads, and ends
// with the request, by itself.
//
// # Goroutines
//
// None but those of context.AfterFunc, which close a connection.
//
// # Locks
//
// None.
package backend

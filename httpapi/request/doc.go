// Package request reads what a client asks for, once.
//
// [Parse] makes a [Request] of a method and a request target. Routing, authorization, audit
// and flow control all read that value and nothing else, and a handler behind reads a URL
// that is written anew from it, so that nobody can be led to read the same bytes in another
// way. The values are those of kube-apiserver's RequestInfo for the same request.
//
// # Guarantees
//
// A Request holds strings of the target it was parsed from and no bytes of a connection's
// buffers. It is not changed after it was parsed, but for the list options, which the
// goroutine that serves it decodes on first use. Parsing takes work and memory in proportion
// to the length of the target, and allocates nothing for the usual ones.
package request

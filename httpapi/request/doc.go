// Package request parses a request's method and target, once.
//
// [Request.Parse] fills in a [Request]. Routing, authorization, audit and flow control read that
// value and nothing else. A handler gets a URL that is written from it, so that no second parser
// reads the client's bytes in another way. The values are those of kube-apiserver's RequestInfo for
// the same request.
//
// # Guarantees
//
// A Request holds strings of the target that it was parsed from, and no bytes of a connection's
// buffers. It does not change after it was parsed, except that the goroutine that serves it decodes
// the list options on first use. Parsing takes work and memory in proportion to the length of the target.
package request

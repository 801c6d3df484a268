// Package nethttp serves requests by net/http handlers: upstream's, proxies to other servers
// and our own pages.
//
// A [Call] is an [exchange.Exchange] that net/http code may have to read or to serve. The first
// time that such code needs an http.Request, the Call builds one from the parsed request. So no
// handler parses the client's bytes a second time, perhaps with another result, and none sees the
// client's credentials once it is authenticated.
//
// # Two ways
//
// Most handlers run on goroutines of their own, with copies of everything that they may keep. Such
// a handler may outlive its request's deadline and even the connection. Its answer is held back
// until it is complete, and is then sent with its length. An answer larger than [MaxBuffered] is
// sent in chunks. If it ends early, or the handler panics, the client can see that.
//
// A handler of a long-running request, or one that passes on bodies that are too large to be held,
// has the connection to itself: package streams gives it the connection when the exchange has
// ended, and closes it when the client has left or lost its right.
//
// A body is read when a handler first asks for it.
//
// # Goroutines
//
// One for each handler whose answer is held back; [Handlers.Wait] waits for them. The handlers
// that have a connection to themselves run on goroutines of package streams.
//
// # Locks
//
// The lock of an answer that is held back is a leaf.
package nethttp

// Package handlers serves requests by net/http handlers: upstream's, those of other servers
// and our own pages.
//
// A [Call] is an [exchange.Exchange] that net/http code may have to look at or to serve. Its
// request is written anew from what was read of the client's, when it is first wanted:
// nobody behind reads the client's own words a second time, and in another way, and nobody
// sees what the client proved itself by once it is known who it is.
//
// # Two ways
//
// A handler runs on a goroutine of its own, with copies of all that it may keep, so that it
// may outlive its request's deadline and even the connection. Its answer is held back until
// it is whole, and leaves with its length known; one that is larger than [MaxBuffered]
// leaves in chunks. If it ends early, or the handler panics, the client sees that it does.
//
// One that is long-running, or that hands on what is too large to be held, has the
// connection to itself: package streams gives it that when the exchange has ended, and cuts
// it off when the client has left or lost its right.
//
// A body is read when a handler first asks for it and not before.
//
// # Goroutines
//
// One for each handler whose answer is held back, which [Handlers.Wait] waits for. Those
// that have a connection to themselves belong to streams.
//
// # Locks
//
// That of an answer that is held back is a leaf.
package handlers

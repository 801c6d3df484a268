// Package nethttp runs net/http handlers: upstream's, proxies to other servers, and our own pages.
//
// A [Call] is an [exchange.Exchange] that net/http code may read or serve. When such code first needs
// an http.Request, the Call builds one from the parsed request. So no handler parses the client's
// bytes again, perhaps with another result, and none sees the credentials of an authenticated client.
//
// # Buffered and streaming handlers
//
// Most handlers run on their own goroutines, with copies of everything that they may keep. Such a handler may outlive
// its request's deadline and even the connection. Its response is buffered until it is complete, and is then sent with
// its length. A response larger than [MaxBuffered], or one of another server larger than 64 KiB, is sent as it is
// written. If the handler ends early or panics, the client sees that the body is incomplete.
//
// A handler of a long-running request, or one that proxies bodies too large to buffer, takes over the
// connection. Package streams passes it the connection when the exchange has ended, and closes the
// connection when the client has left or has lost access.
//
// A body is read when a handler first asks for it.
//
// # Goroutines and locks
//
// Each buffered handler has a goroutine; [Handlers.Wait] waits for them. Streaming handlers run on goroutines of
// package streams. The lock of a buffered response is a leaf.
package nethttp

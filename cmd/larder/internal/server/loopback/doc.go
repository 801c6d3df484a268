// Package loopback makes the clients with which a server calls its own API: by HTTP/1.1 over
// connections in memory, without a socket or TLS.
//
// Clients are built before the server that they call. Until that is attached, their requests
// wait, each until its context ends. The package starts no goroutine.
package loopback

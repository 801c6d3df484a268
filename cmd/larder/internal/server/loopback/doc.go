// Package loopback makes the clients with which a server calls its own API: by HTTP/1.1 over
// connections in memory, without a socket or TLS.
//
// Clients are built before the server. Their requests wait until the server is attached, or their
// contexts end. The package starts no goroutine.
package loopback

// Package loopback creates the clients with which a server calls its own API: over HTTP/1.1 and
// connections in memory, without a socket or TLS.
//
// Clients are created before the server. Their requests wait until the server is attached, or their
// contexts end. The package starts no goroutine.
package loopback

// Package loopback creates the clients and informers with which a server calls its own API: over HTTP/1.1 and
// connections in memory, without a socket or TLS. [Handled] tells when handlers have caught up with an informer.
//
// Clients are created before the server. Their requests wait until the server is attached, or their
// contexts end. The package starts no goroutine; the factory that [NewInformers] returns starts those of its informers.
package loopback

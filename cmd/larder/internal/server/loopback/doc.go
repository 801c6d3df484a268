// Package loopback makes clients with which a server calls its own API, in process and
// without a connection.
//
// Clients are built before the front door that they call: until that is attached, their
// requests wait, each as long as its context. The package starts no goroutine.
package loopback

// Package backend limits upgraded connections to kubelets, pods and services.
//
// Upstream's proxies read the response to an upgrade from the bare connection, without limits of time and
// size. They do not detect that the client has left. [Transport] opens such connections itself. It closes
// them when the request's context ends, and when more than [MaxUnheard] bytes arrive while nothing is sent
// to the client. When a backend closes such a connection, the client still gets everything that the backend has
// sent. [NewContext] makes the context that carries this state. For other requests, net/http's
// transport has such limits.
//
// There are no locks. The only goroutines are those of context.AfterFunc, which close a connection.
package backend

// Package backend limits upgraded connections to kubelets, pods and services.
//
// Upstream's proxies read the response to an upgrade directly from the connection, without limits of time and size, and
// do not detect that the client has left. [Transport] opens such connections itself. It closes them when the request's
// context ends, and when more than [MaxUnforwarded] bytes arrive while nothing is sent to the client. When a backend
// closes such a connection, the client still gets everything that the backend has sent. [NewContext] makes the context
// that has this state. For other requests, net/http's transport has such limits.
//
// There are no locks. The only goroutines are those of context.AfterFunc, which close a connection.
package backend

// Package layers runs the parts of a server, each of which depends on those started before
// it, and ends them in the reverse order.
//
// Every layer has a goroutine, which Stop waits for. The end of Start's context does not end
// a layer: the store must serve until the requests in flight are answered.
package lifecycle

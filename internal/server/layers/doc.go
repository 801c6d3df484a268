// Package layers runs the parts of a server, each of which stands on those started before
// it, and ends them in the reverse order.
//
// Every layer has a goroutine, which Stop waits for. A context that the starter is given
// does not end a layer: the store outlives the request to end, and the requests in flight.
package layers

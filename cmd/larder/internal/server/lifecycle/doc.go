// Package lifecycle runs the parts of a server. Each part depends on those started before it, and
// they end in the reverse order.
//
// Every part has a goroutine, which Stop waits for. The end of Start's context does not end a part:
// the store must serve until the requests in flight have ended.
package lifecycle

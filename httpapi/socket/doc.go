// Package socket reads and sets the kernel's state of a connection:
//
//   - whether a write waits for the client: [Writer], [Waiter]
//   - whether there is something to read: [TCP.AwaitRead]
//   - whether the peer has left: [Alive]
//   - how much the peer has not received: [Queued]
//   - which TLS records leave in one packet: [Write], [Writer]
//
// A [TCP] is the connection below TLS. It starts no goroutine. One goroutine at a time may read, and one may write.
// TLS also writes from the one that reads, for example after a KeyUpdate. A write that waits calls the
// [Waiter] of the current Send, if there is one.
package socket

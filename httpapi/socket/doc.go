// Package socket reads and sets the kernel's state of a connection:
//
//   - a write has to wait for the client: [TCP.Send], [Waiter]
//   - there is something to read: [TCP.ReadLate]
//   - the peer has left: [Alive]
//   - the peer does not read: [Queued]
//   - which records leave in one packet: [Write], [Writer]
//
// A [TCP] stands below TLS. It starts no goroutine. Reads belong to one goroutine at a time,
// and so do writes, which call the [Waiter].
package socket

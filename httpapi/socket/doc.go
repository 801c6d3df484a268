// Package socket is what a server knows of its connections from the kernel: that a write has
// to wait for the client ([TCP.Send], [Waiter]), that there is something to read
// ([TCP.ReadLate]), that the peer has left ([Alive]), that it does not read ([Queued]). And it
// tells the kernel which records leave together ([Write], [Writer]).
//
// A [TCP] stands below TLS. It starts no goroutine. Reads belong to one goroutine at a time,
// and so do writes; a [Waiter] is called by whoever writes.
package socket

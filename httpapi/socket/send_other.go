//go:build !linux

package socket

import "golang.org/x/sys/unix"

// peerClosed is 0: poll(2) reports the end of the connection as POLLHUP.
const peerClosed = 0

// send writes p to the socket fd.
func send(fd int, p []byte, _ bool) (int, error) { return unix.Write(fd, p) }

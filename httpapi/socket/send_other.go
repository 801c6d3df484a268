//go:build !linux

package socket

import "golang.org/x/sys/unix"

// send writes p to the socket fd.
func send(fd int, p []byte, _ bool) (int, error) { return unix.Write(fd, p) }

package socket

import "golang.org/x/sys/unix"

// peerClosed is the event of poll(2) that reports that the peer has closed its side.
const peerClosed = unix.POLLRDHUP

// send writes p to the socket fd, and says whether more is about to be written.
func send(fd int, p []byte, more bool) (int, error) {
	if !more {
		return unix.Write(fd, p)
	}
	return unix.SendmsgN(fd, p, nil, nil, unix.MSG_MORE)
}

package http1

import (
	"net"
	"time"
)

// The bounds on what is read behind an answer that ends its connection.
const (
	lingerBytes = 64 << 20
	lingerTotal = 5 * time.Second
	lingerPause = 500 * time.Millisecond
)

// linger closes the writing side of a connection and reads what the client still sends: the kernel resets
// a connection that is closed with bytes unread, and the client may lose the answer.
func linger(c net.Conn) {
	if half, ok := c.(interface{ CloseWrite() error }); ok && half.CloseWrite() != nil {
		return
	}
	end := time.Now().Add(lingerTotal)
	var buffer [4 << 10]byte
	for n := 0; n < lingerBytes && time.Now().Before(end); {
		if err := c.SetReadDeadline(time.Now().Add(lingerPause)); err != nil {
			return
		}
		read, err := c.Read(buffer[:])
		if err != nil {
			return
		}
		n += read
	}
}

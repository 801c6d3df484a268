package socket

import (
	"time"

	"golang.org/x/sys/unix"
)

// setUserTimeout sets how long what was sent may stay unacknowledged.
func setUserTimeout(fd int, patience time.Duration) error {
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(patience.Milliseconds()))
}

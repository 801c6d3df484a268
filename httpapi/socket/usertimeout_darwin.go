package socket

import (
	"time"

	"golang.org/x/sys/unix"
)

// setUserTimeout sets how long what was sent may stay unacknowledged, in whole seconds.
func setUserTimeout(fd int, patience time.Duration) error {
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_RXT_CONNDROPTIME, int((patience+time.Second-1)/time.Second))
}

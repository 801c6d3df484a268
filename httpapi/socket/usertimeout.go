package socket

import (
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// SetUserTimeout sets how long sent data may stay unacknowledged before the kernel ends the connection. It has an
// effect only on Linux and macOS.
func SetUserTimeout(c *net.TCPConn, limit time.Duration) error {
	if userTimeoutOption == 0 {
		return nil
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	var failed error
	units := int((limit + userTimeoutUnit - 1) / userTimeoutUnit)
	if err := raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, userTimeoutOption, units) }); err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	return failed
}

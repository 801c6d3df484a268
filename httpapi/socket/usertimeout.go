package socket

import (
	"fmt"
	"net"
	"time"
)

// SetUserTimeout has the kernel give up on a peer that does not acknowledge what was sent to it
// for so long. Kernels other than those of Linux and macOS keep to their own patience.
func SetUserTimeout(c *net.TCPConn, patience time.Duration) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = setUserTimeout(int(fd), patience) }); err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	return failed
}

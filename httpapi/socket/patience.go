package socket

import (
	"fmt"
	"net"
	"time"
)

// SetPatience has the kernel give up on a peer that does not acknowledge what was sent to it
// for so long. Kernels other than those of Linux and macOS keep to their own patience.
func SetPatience(c *net.TCPConn, patience time.Duration) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = setPatience(int(fd), patience) }); err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	return failed
}

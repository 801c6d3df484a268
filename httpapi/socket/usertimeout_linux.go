package socket

import (
	"time"

	"golang.org/x/sys/unix"
)

const (
	userTimeoutOption = unix.TCP_USER_TIMEOUT
	userTimeoutUnit   = time.Millisecond
)

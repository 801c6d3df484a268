package socket

import (
	"time"

	"golang.org/x/sys/unix"
)

const (
	userTimeoutOption = unix.TCP_RXT_CONNDROPTIME
	userTimeoutUnit   = time.Second
)

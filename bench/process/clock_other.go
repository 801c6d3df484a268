//go:build !linux

package process

import (
	"errors"
	"time"
)

// processClock exists only on Linux.
func processClock(int) (time.Duration, error) { return 0, errors.ErrUnsupported }

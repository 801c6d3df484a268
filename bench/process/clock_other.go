//go:build !linux

package process

import (
	"errors"
	"time"
)

func processClock(int) (time.Duration, error) { return 0, errors.ErrUnsupported }

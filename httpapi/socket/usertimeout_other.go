//go:build !linux && !darwin

package socket

const userTimeoutOption, userTimeoutUnit = 0, 1

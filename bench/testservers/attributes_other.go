//go:build !linux

package testservers

import "syscall"

// attributes put a process into a group of its own.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// awaitStop does nothing: only on Linux can a parent wait for a stop and leave it to other waiters.
func awaitStop(int) error { return nil }

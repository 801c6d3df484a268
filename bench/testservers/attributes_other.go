//go:build !linux

package testservers

import "syscall"

// attributes puts a process into a new process group.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

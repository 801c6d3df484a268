//go:build !linux

package testservers

import "syscall"

// attributes put a process into a group of its own.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// awaitStop does nothing: only Linux tells a parent without taking the news from others.
func awaitStop(int) error { return nil }

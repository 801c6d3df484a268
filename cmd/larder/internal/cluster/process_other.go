//go:build !linux

package cluster

import (
	"os/exec"
	"syscall"
)

// ignoreTerminalSignals protects the program from signals of the terminal, because Run ends programs in the right order.
func ignoreTerminalSignals(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

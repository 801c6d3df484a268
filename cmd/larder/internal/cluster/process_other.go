//go:build !linux

package cluster

import (
	"os"
	"os/exec"
	"syscall"
)

// keepApart keeps the terminal from telling the program to end, which is done in the right
// order.
func keepApart(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func askToEnd(p *os.Process) error { return p.Signal(syscall.SIGTERM) }

package cluster

import (
	"os"
	"os/exec"
	"syscall"
)

// keepApart keeps the terminal from telling the program to end, which is done in the right
// order, and has it end when this process is killed.
func keepApart(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}

func askToEnd(p *os.Process) error { return p.Signal(syscall.SIGTERM) }

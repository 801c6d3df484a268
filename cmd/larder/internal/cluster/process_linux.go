package cluster

import (
	"os/exec"
	"syscall"
)

// ignoreTerminalSignals protects the program from signals of the terminal, because Run ends programs in the right order.
// The kernel ends the program if this process is killed.
func ignoreTerminalSignals(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}

package proctest

import (
	"os/exec"
	"syscall"
)

// dieWithParent has the kernel kill the process when the thread that starts it ends.
func dieWithParent(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}

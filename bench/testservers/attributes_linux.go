package testservers

import "syscall"

// attributes puts a process into a new process group and kills it when this process ends.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

package testservers

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes put a process into a group of its own and end it with this process.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitStop waits until all threads of a child have stopped, or it has ended. Some threads run for a
// while after SIGSTOP.
func awaitStop(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		switch {
		case err == nil, errors.Is(err, unix.ECHILD): // another waiter has seen its end
			return nil
		case !errors.Is(err, unix.EINTR):
			return err
		}
	}
}

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

// awaitStop waits until all threads of a child that was told to stop have done so, or it has
// ended: some may go on for a while when they are told.
func awaitStop(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		switch {
		case err == nil, errors.Is(err, unix.ECHILD): // who waits for its end was told before
			return nil
		case !errors.Is(err, unix.EINTR):
			return err
		}
	}
}

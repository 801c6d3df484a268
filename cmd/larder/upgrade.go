package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"github.com/coreos/go-systemd/v22/activation"

	"github.com/larder-io/larder/cmd/larder/internal/server"
)

// inheritedVariable is the environment variable with the number of files that a successor inherits. They
// begin at descriptor firstInherited, as in systemd's protocol. systemd's own variables include the ID of the
// process, which is unknown before the process exists.
const (
	inheritedVariable = "LARDER_INHERITED_FILES"
	firstInherited    = 3
)

// inherit returns the files that this process has inherited from its predecessor. Without a predecessor, it returns the
// listener that systemd has opened, if any.
func inherit() (server.Inherited, error) {
	count := os.Getenv(inheritedVariable)
	if count == "" {
		if files := activation.Files(true); len(files) > 0 {
			return server.Inherited{Listener: files[0]}, nil
		}
		return server.Inherited{}, nil
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 2 || n > 3 {
		return server.Inherited{}, fmt.Errorf("%s=%q: only a server may set this variable, for its successor", inheritedVariable, count)
	}
	var files [3]*os.File
	for i := range n {
		syscall.CloseOnExec(firstInherited + i)
		files[i] = os.NewFile(uintptr(firstInherited+i), "inherited")
	}
	return server.Inherited{Listener: files[0], Ready: files[1], Lock: files[2]}, os.Unsetenv(inheritedVariable)
}

// successor starts a process with the name and arguments of this one, and passes files to it.
func successor(files []uintptr) (*os.Process, error) {
	path, err := exec.LookPath(os.Args[0])
	if err != nil {
		return nil, err
	}
	env := []string{fmt.Sprintf("%s=%d", inheritedVariable, len(files))}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "LISTEN_") {
			env = append(env, v)
		}
	}
	pid, err := syscall.ForkExec(path, os.Args, &syscall.ProcAttr{Env: env, Files: append([]uintptr{0, 1, 2}, files...)})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return os.FindProcess(pid)
}

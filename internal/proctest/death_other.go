//go:build !linux

package proctest

import "os/exec"

// dieWithParent does nothing: only Linux ties a process to its parent's life.
func dieWithParent(*exec.Cmd) {}

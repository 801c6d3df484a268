//go:build !linux

package proctest

import "os/exec"

// dieWithParent does nothing: only Linux ties a process to its parent's life.
func dieWithParent(*exec.Cmd) {}

// awaitStop does nothing: only Linux can report a stopped child without consuming the report.
func awaitStop(int) error { return nil }

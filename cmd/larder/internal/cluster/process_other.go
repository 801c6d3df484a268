//go:build !unix

package cluster

import (
	"os"
	"os/exec"
)

// keepApart does nothing: there is no such thing here.
func keepApart(*exec.Cmd) {}

// askToEnd kills: a process cannot be asked here.
func askToEnd(p *os.Process) error { return p.Kill() }

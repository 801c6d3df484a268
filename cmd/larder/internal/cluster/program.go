package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// shutdownTimeout limits the time that a program takes to end.
const shutdownTimeout = 10 * time.Second

// program is a process that runs beside the server.
type program struct {
	path string
	args []string
	logs string // directory of its log
}

// run runs the program. It returns nil when ctx ends, and an error when the program ends by itself.
func (p *program) run(ctx context.Context) error {
	name := filepath.Base(p.path)
	log, err := os.OpenFile(filepath.Join(p.logs, name+".log"), os.O_CREATE|os.O_TRUNC|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, p.path, p.args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = shutdownTimeout
	ignoreTerminalSignals(cmd)
	// With Pdeathsig, a process gets its signal when the thread that started it ends. Keep that thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = cmd.Run()
	if ctx.Err() != nil {
		return nil
	}
	if err == nil {
		err = errors.New("exit status 0")
	}
	return fmt.Errorf("cluster: %s ended unexpectedly: %w; the end of %s: %s", name, err, log.Name(), lastLine(log))
}

// lastLine returns the last nonblank line of a log.
func lastLine(log *os.File) string {
	const near = 4 << 10
	size, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return err.Error()
	}
	end, err := io.ReadAll(io.NewSectionReader(log, max(0, size-near), near))
	if err != nil {
		return err.Error()
	}
	end = bytes.TrimSpace(end)
	return strings.TrimSpace(string(end[bytes.LastIndexByte(end, '\n')+1:]))
}

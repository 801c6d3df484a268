package server

import (
	"context"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/larder-io/larder/cmd/larder/internal/server/datadir"
)

// Inherited has the files that a process inherits from its parent. All may be nil.
type Inherited struct {
	// Listener is the socket that accepts connections, regardless of the flags.
	Listener *os.File
	// Lock is the lock file of the data directory. Processes that share the open file share the lock.
	Lock *os.File
	// Ready is set in a process that takes over from another in an upgrade in place. The other
	// serves until this one, when it is ready, writes a byte.
	Ready *os.File
}

// takesOver reports whether another process serves until this one is ready.
func (i *Inherited) takesOver() bool { return i.Ready != nil }

// handOverDelay is how long a replaced process serves its connections at least. Its answers then ask clients to
// connect again. A client whose idle connection is closed loses a request that it sends at that moment.
const handOverDelay = 5 * time.Second

// handover has the steps of an upgrade in place. Both processes share one listening socket. The
// kernel would reset connections that wait at a socket of SO_REUSEPORT when that is closed.
type handover struct {
	config   *Config
	progress *progress
	dir      *datadir.Dir // nil if there is none
	listener net.Listener
}

// try starts the process that takes over, and reports whether it has taken over.
func (h handover) try(ctx context.Context) bool {
	pid, err := h.startSuccessor(ctx)
	if err != nil {
		h.progress.printf("not upgraded, this process serves on: %v", err)
		return false
	}
	h.progress.printf("upgraded: process %d serves, requests in flight finish here", pid)
	h.config.Notify(fmt.Sprintf("MAINPID=%d", pid))
	return true
}

// startSuccessor returns the id of the process that takes over once it is ready. If ctx ends before, that
// process gets SIGTERM. Nothing waits for it, since it may ignore the signal.
func (h handover) startSuccessor(ctx context.Context) (pid int, err error) {
	switch {
	case !h.config.external():
		return 0, fmt.Errorf("two processes cannot open the embedded etcd; restart the server")
	case h.dir != nil && h.dir.Temporary():
		return 0, fmt.Errorf("certificates and keys were generated for this process only; --data-dir keeps them")
	case h.config.Checkpoints:
		return 0, fmt.Errorf("checkpoints would be lost; restart the server")
	case h.config.Beside != nil || h.config.TestControllers:
		return 0, fmt.Errorf("this server runs other programs or controllers; restart it")
	}
	ready, theirs, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer ready.Close()
	next, err := h.fork(theirs)
	theirs.Close()
	if err != nil {
		return 0, err
	}
	h.progress.printf("upgrading: process %d starts", next.Pid)
	defer context.AfterFunc(ctx, func() {
		_ = next.Signal(syscall.SIGTERM)
		_ = ready.SetReadDeadline(time.Now())
	})()
	_, err = ready.Read(make([]byte, 1))
	switch {
	case err == nil:
		return next.Pid, nil
	case ctx.Err() != nil:
		return 0, fmt.Errorf("process %d was stopped: %w", next.Pid, context.Cause(ctx))
	}
	state, waitErr := next.Wait()
	if waitErr != nil {
		return 0, waitErr
	}
	return 0, fmt.Errorf("process %d ended before it was ready: %v", next.Pid, state)
}

// fork starts the process with the files that it inherits. The listener's descriptor is taken
// without os.File, which would make the socket block for this process, too.
func (h handover) fork(ready *os.File) (next *os.Process, err error) {
	raw, err := h.listener.(syscall.Conn).SyscallConn()
	if err != nil {
		return nil, err
	}
	controlErr := raw.Control(func(fd uintptr) {
		files := []uintptr{fd, ready.Fd()}
		if h.dir != nil {
			files = append(files, h.dir.Lock().Fd())
		}
		next, err = h.config.Successor(files)
	})
	if controlErr != nil {
		return nil, controlErr
	}
	return next, err
}

// finish blocks until clients have had time to connect again, to the process that has taken over.
func (h handover) finish(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(max(handOverDelay, h.config.GenericServerRunOptions.ShutdownDelayDuration)):
	}
}

package server

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"
)

// Inherited holds the files that a process inherits from its parent. All may be nil.
type Inherited struct {
	// Listener is the socket that accepts connections, regardless of the flags.
	Listener *os.File
	// Lock is the lock file of the data directory. Processes that share the open file share the lock.
	Lock *os.File
	// Ready is set in the new process of an upgrade in place. The old process serves until the new one writes a byte,
	// when it is ready.
	Ready *os.File
}

// takesOver reports whether another process serves until this one is ready.
func (i *Inherited) takesOver() bool { return i.Ready != nil }

// handOverDelay is the minimum time for which a replaced process serves its connections. Its responses ask clients to
// reconnect. If it closed idle connections at once, clients would lose requests that they send at that moment.
const handOverDelay = 5 * time.Second

// upgrade starts the new process of an upgrade in place, and reports whether it has taken over. Both processes share one
// listening socket. With two sockets (SO_REUSEPORT), the kernel would reset the connections that wait at the old one when
// it is closed.
func (s *Server) upgrade(ctx context.Context) bool {
	pid, err := s.startSuccessor(ctx)
	if err != nil {
		s.progress.printf("not upgraded, this process continues to serve: %v", err)
		return false
	}
	s.progress.printf("upgraded: process %d serves, requests in flight finish here", pid)
	s.config.Notify(fmt.Sprintf("MAINPID=%d", pid))
	return true
}

// startSuccessor starts the new process and returns its id when it is ready. If ctx ends first, that process gets
// SIGTERM. startSuccessor does not wait for its end, because it may ignore the signal.
func (s *Server) startSuccessor(ctx context.Context) (pid int, err error) {
	switch {
	case !s.config.external():
		return 0, fmt.Errorf("two processes cannot open the embedded etcd; restart the server")
	case s.dir != nil && s.dir.Temporary():
		return 0, fmt.Errorf("certificates and keys were generated for this process only; --data-dir keeps them")
	case s.config.Checkpoints:
		return 0, fmt.Errorf("checkpoints would be lost; restart the server")
	case s.config.Beside != nil || s.config.TestControllers:
		return 0, fmt.Errorf("this server runs other programs or controllers; restart it")
	}
	ready, theirs, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer ready.Close()
	next, err := s.startProcess(theirs)
	theirs.Close()
	if err != nil {
		return 0, err
	}
	s.progress.printf("upgrading: process %d starts", next.Pid)
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

// startProcess starts the process with the files that it inherits. It gets the listener's descriptor without os.File, which
// would make the socket blocking in this process.
func (s *Server) startProcess(ready *os.File) (next *os.Process, err error) {
	raw, err := s.listener.(syscall.Conn).SyscallConn()
	if err != nil {
		return nil, err
	}
	controlErr := raw.Control(func(fd uintptr) {
		files := []uintptr{fd, ready.Fd()}
		if s.dir != nil {
			files = append(files, s.dir.Lock().Fd())
		}
		next, err = s.config.Successor(files)
	})
	if controlErr != nil {
		return nil, controlErr
	}
	return next, err
}

package testservers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/process"
)

// Server is one process of a Servers.
type Server struct {
	Process process.Process
	// Target sends requests to the server; nil for programs of StartBeside.
	Target  *bench.Target
	Started time.Time
	// Again restarts a server that has ended, with the same port and files. It returns a new Server when that is
	// ready. It is nil for programs of StartBeside.
	Again func(context.Context) (*Server, error)

	log    string
	exited chan struct{} // closed when the process has ended
	used   time.Duration // CPU time of the process; set before exited is closed
	etcd   *Server       // the server's own etcd, nil for none
}

// Used waits until the process has ended, and returns its CPU time.
func (s *Server) Used() time.Duration {
	<-s.exited
	return s.used
}

// SinceStart returns the server's cost from the start of its process until now.
func (s *Server) SinceStart(name string) (*bench.Result, error) {
	took := time.Since(s.Started)
	used, err := s.Process.Usage()
	if err != nil {
		return nil, fmt.Errorf("testservers: %w", err)
	}
	r := bench.NewResult(name, "start")
	r.Record(took, 0, nil)
	r.Loop, r.Wall, r.ServerCPU, r.Server = bench.ClosedLoop, took, used.CPU, used
	return r, nil
}

// launch starts a program and writes its output to a file. A goroutine waits for the process; Stop waits for that
// goroutine.
func launch(name, program string, args []string, log string) (*Server, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, fmt.Errorf("testservers: %w", err)
	}
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = attributes()
	s := &Server{log: log, exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		defer close(s.exited)
		defer out.Close()
		// With Pdeathsig, a process dies when the thread that started it ends.
		runtime.LockOSThread()
		s.Started = time.Now()
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait()
			s.used = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		}
	}()
	if err := <-started; err != nil {
		<-s.exited
		return nil, fmt.Errorf("testservers: %s: %w", name, err)
	}
	s.Process = process.Process{Name: name, PID: cmd.Process.Pid}
	return s, nil
}

func (s *Server) signal(signal syscall.Signal) error {
	if s.CheckAlive() != nil {
		return nil
	}
	if err := syscall.Kill(-s.Process.PID, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("testservers: %s: %w", s.Process.Name, err)
	}
	return nil
}

// Stop ends the process and its children, and waits until the process has ended. Then it stops the server's own
// etcd, if any. It may be called again.
func (s *Server) Stop() error {
	err := s.signal(syscall.SIGTERM)
	if err == nil {
		select {
		case <-s.exited:
		case <-time.After(grace):
			err = s.Kill()
		}
	}
	if s.etcd != nil {
		err = errors.Join(err, s.etcd.Stop())
	}
	return err
}

// Kill ends the process and its children with SIGKILL, and waits until the process has ended. The server's own etcd
// continues.
func (s *Server) Kill() error {
	err := s.signal(syscall.SIGKILL)
	if err == nil {
		<-s.exited
	}
	return err
}

// alive calls wait with a context that ends with the process.
func (s *Server) alive(ctx context.Context, wait func(context.Context) error) error {
	const longest = 5 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- wait(ctx) }()
	select {
	case err := <-done:
		return err
	case <-s.exited:
		cancel()
		<-done
		return s.CheckAlive()
	}
}

// CheckAlive returns an error with the end of the log if the process has ended.
func (s *Server) CheckAlive() error {
	select {
	case <-s.exited:
		const most = 2000
		text, _ := os.ReadFile(s.log) // nothing, if it cannot be read
		return fmt.Errorf("testservers: %s has ended:\n%s", s.Process.Name, text[max(0, len(text)-most):])
	default:
		return nil
	}
}

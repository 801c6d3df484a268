package testservers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
	exited context.Context // ends with the process
	used   time.Duration   // CPU time of the process; set before exited ends
	etcd   *Server         // the server's own etcd, nil for none
}

// Used waits until the process has ended, and returns its CPU time.
func (s *Server) Used() time.Duration {
	<-s.exited.Done()
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

// StartBeside starts a program that has no Target, such as a controller. Close stops it before all
// programs that were started earlier.
func (f *Servers) StartBeside(name, program string, args []string) (*Server, error) {
	f.count++
	log := filepath.Join(f.config.Dir, fmt.Sprintf("%s-%d.log", name, f.count))
	out, err := os.Create(log)
	if err != nil {
		return nil, fmt.Errorf("testservers: %w", err)
	}
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = attributes()
	exited, exit := context.WithCancel(context.Background())
	s := &Server{log: log, exited: exited}
	started := make(chan error)
	go func() { // Stop waits for it
		defer exit()
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
		<-exited.Done()
		return nil, fmt.Errorf("testservers: %s: %w", name, err)
	}
	s.Process = process.Process{Name: name, PID: cmd.Process.Pid}
	f.all = append(f.all, s)
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
		case <-s.exited.Done():
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
		<-s.exited.Done()
	}
	return err
}

// CheckAlive returns an error with the end of the log if the process has ended.
func (s *Server) CheckAlive() error {
	if s.exited.Err() == nil {
		return nil
	}
	const most = 2000
	text, _ := os.ReadFile(s.log) // nothing, if it cannot be read
	return fmt.Errorf("testservers: %s has ended:\n%s", s.Process.Name, text[max(0, len(text)-most):])
}

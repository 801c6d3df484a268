package proctest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Patience bounds whatever a test waits for. Nothing takes nearly as long, on a
// machine that is busy with other things and has nothing of its disk in memory either.
const Patience = 5 * time.Minute

// Process is a command that is started as often as its test wants.
type Process struct {
	name    string
	command func() *exec.Cmd

	mu  sync.Mutex
	run *run // the last one, nil before the first
}

// run is one life of a Process.
type run struct {
	process *os.Process
	output  Buffer
	exited  chan struct{} // closed when the process has ended
	err     error         // how; read after exited
}

// New returns a process that is not started yet. Each start calls command. Output that the command
// does not direct elsewhere is kept by the Process. The test's end kills the process.
func New(t testing.TB, name string, command func() *exec.Cmd) *Process {
	p := &Process{name: name, command: command}
	t.Cleanup(p.Kill)
	return p
}

// Role returns the command that runs the test binary again, with config as JSON in
// the environment variable that makes it play a role.
func Role(t testing.TB, variable string, config any) func() *exec.Cmd {
	t.Helper()
	raw, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return func() *exec.Cmd {
		cmd := exec.Command(executable)
		cmd.Env = append(os.Environ(), variable+"="+string(raw))
		return cmd
	}
}

// Start starts the process, for the first time or after it has ended.
func (p *Process) Start() error {
	r, cmd := &run{exited: make(chan struct{})}, p.command()
	if cmd.Stdout == nil {
		cmd.Stdout = &r.output
	}
	if cmd.Stderr == nil {
		cmd.Stderr = &r.output
	}
	dieWithParent(cmd)
	started := make(chan error)
	go func() {
		defer close(r.exited)
		// The kernel takes the end of the thread that started a process for its
		// parent's, so that thread lives as long as the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			r.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("proctest: start %s: %w", p.name, err)
	}
	r.process = cmd.Process
	p.mu.Lock()
	defer p.mu.Unlock()
	p.run = r
	return nil
}

func (p *Process) last() *run {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.run
}

// Kill ends the process without warning and waits for its end. It does nothing to
// one that does not run.
func (p *Process) Kill() {
	if r := p.last(); r != nil {
		r.process.Kill()
		<-r.exited
	}
}

// Signal sends a signal to the process, which must have been started.
func (p *Process) Signal(s syscall.Signal) error {
	if err := p.last().process.Signal(s); err != nil {
		return fmt.Errorf("proctest: signal %s: %w", p.name, err)
	}
	return nil
}

// Pause stops the process, which must have been started, where it is, until it is sent SIGCONT.
// On Linux it returns when all of the process stands still, which takes a while on a busy
// machine.
func (p *Process) Pause() error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	if err := awaitStop(p.PID()); err != nil {
		return fmt.Errorf("proctest: pause %s: %w", p.name, err)
	}
	return nil
}

// PID is the number of the process.
func (p *Process) PID() int { return p.last().process.Pid }

// Wait waits for the process to end by itself and returns how it did. A process that does not end
// gets SIGQUIT, so that a Go program prints its goroutines.
func (p *Process) Wait(t testing.TB) error {
	t.Helper()
	r := p.last()
	select {
	case <-r.exited:
		return r.err
	case <-time.After(Patience):
		r.process.Signal(syscall.SIGQUIT)
		<-r.exited
		t.Fatalf("%s does not end:\n%s", p.name, r.output.String())
		return nil
	}
}

// Terminate asks the process to end and returns how it did.
func (p *Process) Terminate(t testing.TB) error {
	t.Helper()
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	return p.Wait(t)
}

// Ended returns nil while the process runs, and afterwards an error with how it ended and the end of
// its output.
func (p *Process) Ended() error {
	r := p.last()
	select {
	case <-r.exited:
		output := r.output.String()
		return fmt.Errorf("proctest: %s ended: %v\n%s", p.name, r.err, output[max(0, len(output)-4000):])
	default:
		return nil
	}
}

// Output is all that the process has written since it was started last.
func (p *Process) Output() string {
	if r := p.last(); r != nil {
		return r.output.String()
	}
	return ""
}

// Await waits until the process has written text. The process's end before that ends
// the test.
func (p *Process) Await(t testing.TB, text string) {
	t.Helper()
	p.Eventually(t, fmt.Sprintf("writes %q", text), func() error {
		if out := p.Output(); !strings.Contains(out, text) {
			return errors.New(out)
		}
		return nil
	})
}

// Eventually calls check until it returns nil. The process's end before that ends the
// test.
func (p *Process) Eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	Eventually(t, p.name+" "+what, func() error {
		ended := p.Ended() // asked first, so that last words count
		err := check()
		if err != nil && ended != nil {
			t.Fatal(ended)
		}
		return err
	})
}

// Eventually calls check until it returns nil.
func Eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	pace := time.NewTicker(10 * time.Millisecond)
	defer pace.Stop()
	for deadline := time.Now().Add(Patience); ; <-pace.C {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: never: %v", what, err)
		}
	}
}

// Buffer keeps what a process writes while a test reads it.
type Buffer struct {
	Most int // the Buffer drops what is written after that many bytes; 0 is no limit

	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.Most == 0 || b.buf.Len() < b.Most {
		b.buf.Write(p)
	}
	return len(p), nil
}

// String returns what was written.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

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

// Patience limits how long a test waits for something. It is much longer than anything takes, even on a
// busy machine with an empty disk cache.
const Patience = 5 * time.Minute

// Process is a command that a test may start again after it has ended.
type Process struct {
	name    string
	command func() *exec.Cmd

	mu  sync.Mutex
	run *run // of the last start, nil before the first
}

// run is one execution of a Process.
type run struct {
	process *os.Process
	output  Buffer
	exited  chan struct{} // closed when the process has ended
	err     error         // of Wait; read after exited is closed
}

// New returns a Process that is not started. Start calls command each time. The Process keeps standard
// output and error unless command sets them. It is killed when the test ends.
func New(t testing.TB, name string, command func() *exec.Cmd) *Process {
	p := &Process{name: name, command: command}
	t.Cleanup(p.Kill)
	return p
}

// Role returns a command that runs the test binary with config as JSON in an environment variable. The
// binary's TestMain reads the variable.
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

// Start starts the process. It must not be running.
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
		// The kernel kills the process when the thread that started it ends: see dieWithParent.
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

// Kill kills the process and waits until it has ended. It does nothing if the process is not running.
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

// Pause stops the process, which must have been started, until it gets SIGCONT. On Linux, Pause returns
// when all threads have stopped, which takes a while on a busy machine.
func (p *Process) Pause() error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	if err := awaitStop(p.PID()); err != nil {
		return fmt.Errorf("proctest: pause %s: %w", p.name, err)
	}
	return nil
}

// PID returns the process ID.
func (p *Process) PID() int { return p.last().process.Pid }

// Wait waits until the process ends and returns the error of exec.Cmd.Wait. After Patience it sends SIGQUIT,
// so that a Go program prints its goroutines, and fails the test.
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

// Terminate sends SIGTERM and waits as Wait does.
func (p *Process) Terminate(t testing.TB) error {
	t.Helper()
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	return p.Wait(t)
}

// Ended returns nil while the process runs. Afterwards it returns an error with the exit status and the end
// of the output.
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

// Output returns the output of the process since the last start.
func (p *Process) Output() string {
	if r := p.last(); r != nil {
		return r.output.String()
	}
	return ""
}

// Await waits until the process has written text. The test fails if the process ends first.
func (p *Process) Await(t testing.TB, text string) {
	t.Helper()
	p.Eventually(t, fmt.Sprintf("writes %q", text), func() error {
		if out := p.Output(); !strings.Contains(out, text) {
			return errors.New(out)
		}
		return nil
	})
}

// Eventually calls check until it returns nil. The test fails if the process ends first.
func (p *Process) Eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	Eventually(t, p.name+" "+what, func() error {
		ended := p.Ended() // before check, so that check sees all output
		err := check()
		if err != nil && ended != nil {
			t.Fatal(ended)
		}
		return err
	})
}

// Eventually calls check until it returns nil. In a long wait it pauses longer, so that checks leave time to the servers.
func Eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	for began := time.Now(); ; {
		err := check()
		if err == nil {
			return
		}
		waited := time.Since(began)
		if waited > Patience {
			t.Fatalf("%s: never: %v", what, err)
		}
		<-time.After(min(max(waited/20, 10*time.Millisecond), 100*time.Millisecond))
	}
}

// Buffer is a bytes.Buffer that a process may write while a test reads it.
type Buffer struct {
	Most int // drop further writes once it holds this many bytes; 0 is no limit

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

// String returns the contents.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Build builds a program, named by the path of its package, and writes it to file. flags are further flags of the go
// command. `go run` keeps the programs that it links in the build cache, and links them without debugging information.
// So among several test binaries only the first one waits for the linker.
func Build(file, program string, flags ...string) error {
	args := append([]string{"run", "-exec", "cp"}, flags...)
	if out, err := exec.Command("go", append(args, program, file)...).CombinedOutput(); err != nil {
		return fmt.Errorf("proctest: go %v: %w\n%s", args, err, out)
	}
	return nil
}

// ShortTemp makes /tmp the directory for temporary files if the usual one has too long a name. The path of a unix
// socket has about a hundred bytes. TestMain calls it.
func ShortTemp() {
	const long = 30
	if len(os.TempDir()) <= long {
		return
	}
	if err := os.Setenv("TMPDIR", "/tmp"); err != nil {
		panic(err)
	}
}

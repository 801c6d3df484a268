package proctest_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/larder-io/larder/internal/proctest"
)

// roleVariable selects what the test binary does instead of running tests.
const roleVariable = "LARDER_PROCTEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case `"idle"`:
		fmt.Println("idle")
		blockForever()
	case `"spin"`:
		fmt.Println("spinning")
		runtime.GOMAXPROCS(8)
		for range 8 {
			go func() {
				//lint:ignore SA5002 the test pauses running threads
				for {
				}
			}()
		}
		blockForever()
	case `"end"`:
		fmt.Println("last words")
		os.Exit(3)
	case `"parent"`:
		child := proctest.New(withoutCleanup{}, "child", func() *exec.Cmd {
			cmd := proctest.Role(withoutCleanup{}, roleVariable, "idle")()
			cmd.Stdout = os.Stdout
			return cmd
		})
		fmt.Println(child.Start())
		blockForever()
	default:
		proctest.Main(m)
	}
}

// blockForever waits for a signal that is never sent.
func blockForever() {
	never := make(chan os.Signal, 1)
	signal.Notify(never, syscall.SIGUSR2)
	<-never
}

// withoutCleanup is a testing.TB for a process that is not a test.
type withoutCleanup struct{ testing.TB }

func (withoutCleanup) Helper()        {}
func (withoutCleanup) Cleanup(func()) {}

func TestProcessesRestart(t *testing.T) {
	p := proctest.New(t, "idle", proctest.Role(t, roleVariable, "idle"))
	if out := p.Output(); out != "" {
		t.Errorf("output before the start: %q, want none", out)
	}
	p.Kill() // does nothing before the start
	for range 2 {
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		p.Await(t, "idle")
		if err := p.Ended(); err != nil {
			t.Error(err)
		}
		if err := p.Terminate(t); err == nil || !strings.Contains(err.Error(), "terminated") {
			t.Errorf("Terminate: %v, want signal: terminated", err)
		}
	}
	if got := p.Output(); got != "idle\n" {
		t.Errorf("output since the second start: %q, want idle", got)
	}
	if err := p.Signal(syscall.SIGCONT); err == nil {
		t.Error("Signal after the end of the process: no error")
	}
}

// TestPauseStopsAllThreads checks that Pause returns after all threads have stopped, and that SIGCONT resumes them.
func TestPauseStopsAllThreads(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has /proc with the state of threads")
	}
	p := proctest.New(t, "spinning", proctest.Role(t, roleVariable, "spin"))
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	p.Await(t, "spinning")
	for range 10 {
		if err := p.Pause(); err != nil {
			t.Fatal(err)
		}
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.PID()))
		if err != nil || len(threads) == 0 {
			t.Fatalf("threads %q, error %v; want at least one", threads, err)
		}
		for _, thread := range threads {
			stat, err := os.ReadFile(thread)
			if err != nil {
				t.Fatal(err)
			}
			if _, state, _ := strings.Cut(string(stat), ") "); !strings.HasPrefix(state, "T ") {
				t.Errorf("a thread is not stopped: %s", stat)
			}
		}
		if err := p.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Terminate(t); err == nil || !strings.Contains(err.Error(), "terminated") {
		t.Errorf("Terminate: %v, want signal: terminated", err)
	}
}

func TestEndedHasExitStatusAndOutput(t *testing.T) {
	p := proctest.New(t, "ending", proctest.Role(t, roleVariable, "end"))
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(t); err == nil || err.Error() != "exit status 3" {
		t.Errorf("Wait: %v, want exit status 3", err)
	}
	if err := p.Ended(); err == nil || !strings.Contains(err.Error(), "exit status 3\nlast words") {
		t.Errorf("Ended: %v, want the exit status and the output", err)
	}
	missing := proctest.New(t, "missing", func() *exec.Cmd { return exec.Command("/no/such/file") })
	if err := missing.Start(); err == nil || !strings.Contains(err.Error(), "start missing") {
		t.Errorf("Start of a missing file: %v, want an error with its name", err)
	}
}

// TestProcessesDoNotOutliveTheirParent checks that a process ends when the test binary is killed.
func TestProcessesDoNotOutliveTheirParent(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ties a process to its parent's life")
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	role := proctest.Role(t, roleVariable, "parent")
	parent := proctest.New(t, "parent", func() *exec.Cmd {
		cmd := role()
		cmd.Stdout = write
		return cmd
	})
	err = parent.Start()
	write.Close()
	if err != nil {
		t.Fatal(err)
	}
	read.SetDeadline(time.Now().Add(proctest.Patience))
	out := bufio.NewReader(read)
	for range 2 { // the parent's line and the child's
		if line, err := out.ReadString('\n'); err != nil || line != "<nil>\n" && line != "idle\n" {
			t.Fatalf("line %q, error %v; want that parent and child have started", line, err)
		}
	}
	parent.Kill()
	// The pipe is closed when both processes have ended.
	if rest, err := io.ReadAll(out); err != nil || len(rest) > 0 {
		t.Errorf("read %q, error %v; want the end of the pipe", rest, err)
	}
}

// TestPortsAreReserved checks that ports are free, and that no two tests get the same port.
func TestPortsAreReserved(t *testing.T) {
	ports := proctest.Ports(t, 20)
	seen := make(map[int]bool)
	for _, port := range ports {
		if seen[port] {
			t.Errorf("got port %d twice", port)
		}
		seen[port] = true
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Error(err)
			continue
		}
		l.Close()
	}
	var port int
	t.Run("other test", func(t *testing.T) { port = proctest.Port(t) })
	if seen[port] {
		t.Errorf("two tests got port %d", port)
	}
}

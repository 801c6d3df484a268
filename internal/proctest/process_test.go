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

// roleVariable makes the test binary stay idle, end, or start a process that stays idle.
const roleVariable = "LARDER_PROCTEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case `"stand"`:
		fmt.Println("standing")
		blockForever()
	case `"spin"`:
		fmt.Println("spinning")
		runtime.GOMAXPROCS(8)
		for range 8 {
			go func() {
				//lint:ignore SA5002 a process that spins is what the test needs
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
			cmd := proctest.Role(withoutCleanup{}, roleVariable, "stand")()
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

// withoutCleanup is a test that does not clean up.
type withoutCleanup struct{ testing.TB }

func (withoutCleanup) Helper()        {}
func (withoutCleanup) Cleanup(func()) {}

func TestProcessesStartAgain(t *testing.T) {
	p := proctest.New(t, "it", proctest.Role(t, roleVariable, "stand"))
	if out := p.Output(); out != "" {
		t.Errorf("output %q before the start", out)
	}
	p.Kill() // ends no process
	for range 2 {
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		p.Await(t, "standing")
		if err := p.Ended(); err != nil {
			t.Error(err)
		}
		if err := p.Terminate(t); err == nil || !strings.Contains(err.Error(), "terminated") {
			t.Errorf("ended with %v", err)
		}
	}
	if got := p.Output(); got != "standing\n" {
		t.Errorf("output %q of the second life", got)
	}
	if err := p.Signal(syscall.SIGCONT); err == nil {
		t.Error("a process that has ended was sent a signal")
	}
}

// TestPausedProcessesStandStill checks that a paused process does nothing, and continues when it is resumed.
func TestPausedProcessesStandStill(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells that a process stands still")
	}
	p := proctest.New(t, "it", proctest.Role(t, roleVariable, "spin"))
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
			t.Fatalf("%q, %v", threads, err)
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
		t.Errorf("ended with %v", err)
	}
}

func TestEndedSaysHowAProcessEnded(t *testing.T) {
	p := proctest.New(t, "it", proctest.Role(t, roleVariable, "end"))
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(t); err == nil || err.Error() != "exit status 3" {
		t.Errorf("ended with %v", err)
	}
	if err := p.Ended(); err == nil || !strings.Contains(err.Error(), "exit status 3\nlast words") {
		t.Errorf("ended: %v", err)
	}
	missing := proctest.New(t, "nothing", func() *exec.Cmd { return exec.Command("/no/such/file") })
	if err := missing.Start(); err == nil || !strings.Contains(err.Error(), "start nothing") {
		t.Errorf("a file that is not there was started: %v", err)
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
		if line, err := out.ReadString('\n'); err != nil || line != "<nil>\n" && line != "standing\n" {
			t.Fatalf("%q, %v", line, err)
		}
	}
	parent.Kill()
	// The pipe ends when no process holds it any more.
	if rest, err := io.ReadAll(out); err != nil || len(rest) > 0 {
		t.Errorf("the child lives on: %q, %v", rest, err)
	}
}

// TestPortsAreGivenOutOnce checks that ports are free, and that no two tests get the same port.
func TestPortsAreGivenOutOnce(t *testing.T) {
	ports := proctest.Ports(t, 20)
	seen := make(map[int]bool)
	for _, port := range ports {
		if seen[port] {
			t.Errorf("port %d twice", port)
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
		t.Errorf("port %d belongs to two tests", port)
	}
}

package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/internal/proctest"
)

// TestTopShowsRequests checks that the command shows clients and their requests to users with the right, as a table, as
// JSON and on a terminal.
func TestTopShowsRequests(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync", "--token-auth-file", tokens(t))
	config := rest.CopyConfig(p.config())
	config.UserAgent = "evil\u009b31m\u202e/1" // would change a terminal's color, and its direction
	client := kubernetes.NewForConfigOrDie(config)
	const sent = 37
	for range sent {
		if _, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) string {
		return larder(t, append([]string{"top", "--kubeconfig", p.kubeconfig()}, args...)...)
	}
	var out string
	proctest.Eventually(t, "all requests are counted", func() error { // the last one may still be in flight
		out = run("--once", "--sort", "requests", "--window", "start")
		for line := range strings.Lines(out) {
			cells := strings.Fields(line)
			if len(cells) > 4 && cells[2] == fmt.Sprint(sent) && strings.HasSuffix(strings.Join(cells, " "), " evil?31m?/1 list configmaps") {
				return nil
			}
		}
		return errors.New(out)
	})
	if strings.ContainsAny(out, "\x1b\u009b\u202e") {
		t.Errorf("the table contains control characters: %q", out)
	}
	for line := range strings.Lines(out) {
		if strings.Contains(line, "CPU s") && strings.Join(strings.Fields(line), " ") != "CPU s BYTES REQ* EVENTS MISSED USER AGENT VERB RESOURCE" {
			t.Errorf("unexpected line: %s", line)
		}
	}
	var document struct {
		By   string
		Rows []struct{ Verb string }
	}
	out = run("--once", "-o", "json", "--by", "verb")
	if err := json.Unmarshal([]byte(out), &document); err != nil || document.By != "verb" || len(document.Rows) == 0 || document.Rows[0].Verb == "" {
		t.Errorf("JSON: error %v: %s", err, out)
	}
	for args, want := range map[string]string{
		"--by=nobody":       `! larder: costs: by must be one of ["client" "user" "agent" "resource" "verb"], not "nobody"`,
		"-o=yaml":           "! larder: --output must be table or json",
		"--interval=1ms":    "! larder: --interval must be at least 100ms",
		"--kubeconfig=/not": "! larder: ",
	} {
		if out := run("--once", args); !strings.Contains(out, want) || !strings.HasSuffix(out, "(exit status 1)\n") {
			t.Errorf("%s: %s", args, out)
		}
	}
	if status, err := p.status("/larder/costs", "alice-token"); status != 403 {
		t.Errorf("costs without the right: status %d, error %v, want 403", status, err)
	}
	t.Run("terminal", func(t *testing.T) { topOnTerminal(t, p) })
}

// topOnTerminal runs the command on a terminal, presses keys and checks the output.
func topOnTerminal(t *testing.T, p *process) {
	screen, terminal := openTerminal(t)
	if err := unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 12, Col: 70}); err != nil {
		t.Fatal(err)
	}
	before, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binaries.larder, "top", "--kubeconfig", p.kubeconfig(), "--interval", "200ms")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer cmd.Process.Kill()
	shows := func(want string) {
		t.Helper()
		proctest.Eventually(t, "the screen shows "+want, func() error {
			if last := screen.last(); !strings.Contains(last, want) {
				return fmt.Errorf("%q", last)
			}
			return nil
		})
	}
	shows("CPU*")
	for _, step := range []struct{ key, want string }{{"b", "BYTES/S*"}, {"2", "MISSED  USER"}, {"r", "REQ/S*"}, {"5", "MISSED  VERB"}, {"s", "since the start"}} {
		if _, err := screen.file.WriteString(step.key); err != nil {
			t.Fatal(err)
		}
		shows(step.want)
	}
	for line := range strings.SplitSeq(screen.last(), "\r\n") {
		if len([]rune(strings.ReplaceAll(line, "\x1b[K", ""))) > 70 {
			t.Errorf("a line is wider than the terminal: %q", line)
		}
	}
	if err := unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 4, Col: 30}); err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, "the screen has four lines", func() error {
		if last := screen.last(); strings.Count(last, "\r\n") != 3 {
			return fmt.Errorf("%q", last)
		}
		return nil
	})
	if _, err := screen.file.WriteString("q"); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("exit after q: %v", err)
	}
	after, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the terminal's state is %+v, was %+v, error %v", after, before, err)
	}
	proctest.Eventually(t, "the screen is restored", func() error {
		if all := screen.all(); !strings.HasSuffix(all, "\x1b[?25h\x1b[?1049l") {
			return fmt.Errorf("%q", all)
		}
		return nil
	})
}

// screen is a program's output on a terminal.
type screen struct {
	file *os.File

	mu   sync.Mutex
	text []byte // guarded by mu
}

// openTerminal returns the two ends of a pseudo-terminal: the screen, and the file for the program.
func openTerminal(t *testing.T) (*screen, *os.File) {
	file, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &screen{file: file}
	raw, err := file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var number int
	if err := raw.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
			number, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var room [4096]byte
		for {
			n, err := file.Read(room[:])
			s.mu.Lock()
			s.text = append(s.text, room[:n]...)
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		terminal.Close()
		file.Close()
		<-ended
	})
	return s, terminal
}

func (s *screen) all() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.text)
}

// last returns the last frame, from the top of the screen to its end.
func (s *screen) last() string {
	frames := strings.Split(s.all(), "\x1b[H")
	for i := len(frames) - 1; i > 0; i-- {
		if frame, whole := strings.CutSuffix(frames[i], "\x1b[J"); whole {
			return frame
		}
	}
	return ""
}

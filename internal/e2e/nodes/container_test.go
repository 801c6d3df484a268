package nodes

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

// container is a process, and the commands executed in addition.
type container struct {
	dir string

	mu       sync.Mutex
	changed  chan struct{}        // guarded by mu: closed when any of the following changes
	runs     [][]line             // guarded by mu: the output of each run of the process
	ended    bool                 // guarded by mu: the process of the last run has ended
	attached map[io.Writer]func() // guarded by mu: receivers of its output, and functions to call if a write to one fails
	stdin    io.WriteCloser       // guarded by mu
	cancel   context.CancelFunc   // guarded by mu
	wait     func() error         // guarded by mu
}

// line is the text of one write.
type line struct {
	at   time.Time
	text string
}

// run starts the container's own process, also again.
func (k *kubelet) run(t testing.TB, key string, command ...string) *container {
	t.Helper()
	k.mu.Lock()
	c := k.containers[key]
	if c == nil {
		c = &container{dir: k.dir, changed: make(chan struct{}), attached: make(map[io.Writer]func())}
		k.containers[key] = c
	}
	k.mu.Unlock()
	c.stop()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir = k.dir
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, in := io.Pipe()
	cmd.Stdout, cmd.Stderr = in, in
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runs, c.ended, c.stdin, c.cancel = append(c.runs, nil), false, stdin, cancel
	c.changedLocked()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		in.Close()
		done <- err
	}()
	printed := make(chan struct{})
	go func() { c.print(out); close(printed) }()
	c.wait = sync.OnceValue(func() error { <-printed; return <-done })
	return c
}

func (c *container) changedLocked() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// print records the output of the process until it has ended.
func (c *container) print(out io.Reader) {
	in := bufio.NewReader(out)
	for {
		text, err := in.ReadString('\n')
		c.mu.Lock()
		if text != "" {
			last := len(c.runs) - 1
			c.runs[last] = append(c.runs[last], line{time.Now(), text})
			for w, gone := range c.attached {
				if _, err := io.WriteString(w, text); err != nil {
					gone()
				}
			}
		}
		c.ended = err != nil
		c.changedLocked()
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// stop ends the container's own process if it is running.
func (c *container) stop() {
	c.mu.Lock()
	cancel, wait, stdin := c.cancel, c.wait, c.stdin
	c.mu.Unlock()
	if cancel != nil {
		stdin.Close()
		cancel()
		_ = wait()
	}
}

// state returns the output of a run, counted from the last one, and whether it has ended.
func (c *container) state(before int) (printed []line, ended bool, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := len(c.runs) - 1 - before
	if at < 0 {
		return nil, true, nil
	}
	return c.runs[at], c.ended || before > 0, c.changed
}

// age sets the time of the first n lines of the current run.
func (c *container) age(n int, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	aged := slices.Clone(c.runs[len(c.runs)-1])
	for i := range aged[:n] {
		aged[i].at = at
	}
	c.runs[len(c.runs)-1] = aged
}

// logs serves a container's log as a kubelet does, which reads the log from files.
func (k *kubelet) logs(w http.ResponseWriter, req *http.Request) {
	c := k.found(w, req)
	if c == nil {
		return
	}
	q := req.URL.Query()
	before := 0
	if q.Get("previous") == "true" {
		before = 1
	}
	printed, ended, changed := c.state(before)
	if printed == nil && ended {
		http.Error(w, fmt.Sprintf("previous terminated container %q in pod %q not found", req.PathValue("container"), req.PathValue("pod")), http.StatusBadRequest)
		return
	}
	from, since := 0, time.Time{}
	if s, err := time.Parse(time.RFC3339, q.Get("sinceTime")); err == nil {
		since = s
	}
	if s, err := strconv.Atoi(q.Get("sinceSeconds")); err == nil {
		since = time.Now().Add(-time.Duration(s) * time.Second)
	}
	if tail, err := strconv.Atoi(q.Get("tailLines")); err == nil {
		from = max(0, len(printed)-tail)
	}
	left := -1
	if limit, err := strconv.Atoi(q.Get("limitBytes")); err == nil {
		left = limit
	}
	w.Header().Set("Content-Type", "text/plain")
	for {
		for ; from < len(printed); from++ {
			l := printed[from]
			text := l.text
			if q.Get("timestamps") == "true" {
				text = l.at.UTC().Format(time.RFC3339Nano) + " " + text
			}
			if left >= 0 {
				text = text[:min(left, len(text))]
				left -= len(text)
			}
			if l.at.Before(since) {
				continue
			}
			if _, err := io.WriteString(w, text); err != nil {
				return
			}
		}
		w.(http.Flusher).Flush()
		if ended || q.Get("follow") != "true" {
			return
		}
		select {
		case <-changed:
		case <-req.Context().Done():
			return
		case <-k.ended.Done():
			return
		}
		printed, ended, changed = c.state(before)
	}
}

// ExecInContainer implements remotecommand.Executor.
func (c *container) ExecInContainer(ctx context.Context, _, _, _ string, command []string, in io.Reader, out, errs io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize, _ time.Duration) error {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir = c.dir
	cmd.Env = append(os.Environ(), "PS1=$ ", "HISTFILE=")
	if tty {
		return exitOf(terminal(cmd, in, out, resize))
	}
	if in != nil {
		stdin, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		go func() {
			_, _ = io.CopyBuffer(struct{ io.Writer }{stdin}, in, make([]byte, 64<<10))
			stdin.Close()
		}()
	}
	if out != nil {
		cmd.Stdout = out
	}
	if errs != nil {
		cmd.Stderr = errs
	}
	return exitOf(cmd.Run())
}

// exitOf returns the exit status of a process, as kubelets report it.
func exitOf(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return utilexec.CodeExitError{Err: fmt.Errorf("exit status %d", exit.ExitCode()), Code: exit.ExitCode()}
	}
	return err
}

// AttachContainer implements remotecommand.Attacher.
func (c *container) AttachContainer(ctx context.Context, _, _, _ string, in io.Reader, out, _ io.WriteCloser, _ bool, resize <-chan remotecommand.TerminalSize) error {
	ctx, gone := context.WithCancel(ctx)
	defer gone()
	c.mu.Lock()
	stdin := c.stdin
	if out != nil {
		c.attached[out] = gone
	}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.attached, out)
	}()
	if in != nil {
		go func() {
			_, _ = io.Copy(stdin, in)
			stdin.Close()
		}()
	}
	if resize != nil {
		go func() {
			for range resize {
			}
		}()
	}
	for {
		_, ended, changed := c.state(0)
		if ended {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

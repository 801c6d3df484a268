package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/internal/proctest"
)

// TestUpgradeInPlace replaces a server under load, over both protocols: first with a program that does not start, then
// twice with one that does. No request may fail, /readyz must respond to each probe with 200, and each informer must
// list once.
func TestUpgradeInPlace(t *testing.T) {
	t.Parallel() // mostly waits
	debug := filepath.Join(t.TempDir(), "debug")
	p := newUpgraded(t, "--etcd-servers", serveEtcd(t), "--token-auth-file", tokens(t), "--shutdown-delay-duration=10s", "--debug-socket-path", debug,
		"--etcd-healthcheck-timeout=1m", "--etcd-readycheck-timeout=1m") // a slow etcd also counts as ready
	lists := new(atomic.Int64)
	w := &rolling{config: &rest.Config{
		Host: p.url(), BearerToken: "root-token", QPS: 200, Burst: 200, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, Timeout: proctest.Patience,
	}}
	w.config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return countLists{rt, lists} })
	load := w.start(t)
	overHTTP1 := informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(ownTransport(w.config, 1, false)), 0)
	overHTTP1.Core().V1().ConfigMaps().Informer()
	overHTTP1.Core().V1().Secrets().Informer()
	overHTTP1.Start(load.halt)
	overHTTP1.WaitForCacheSync(load.halt)
	probes := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() { probes <- p.probe(ctx) }()

	load.proceed(t, 100)
	p.install(fmt.Sprintf("#!/bin/sh\nexec %s \"$@\" --no-such-flag\n", binaries.larder))
	p.signal(syscall.SIGUSR2)
	p.await(`not upgraded, this process continues to serve: process \d+ ended before it was ready: exit status 1`)
	load.proceed(t, 100)
	if err := p.Ended(); err != nil {
		t.Fatal(err)
	}
	p.install("")
	p.signal(syscall.SIGUSR2)
	second := p.await(`upgraded: process (\d+) serves`)
	if err := p.Wait(t); err != nil {
		t.Errorf("exit: %v\n%s", err, p.output())
	}
	load.proceed(t, 100)
	if err := syscall.Kill(second, syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	p.await(`upgraded: process (\d+) serves(?s:.*)upgraded: process`)
	proctest.Eventually(t, "the second process exits", func() error {
		if err := syscall.Kill(second, 0); !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("it is still running: %v", err)
		}
		return nil
	})
	load.proceed(t, 100)
	proctest.Eventually(t, "the third process has a debug socket", func() error {
		conn, err := net.Dial("unix", debug)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	stop()
	if err := <-probes; err != nil {
		t.Error(err)
	}
	load.stop()
	for kind := range load.counts {
		c := &load.counts[kind]
		t.Logf("%-12s %6d requests, %d failed", loads[kind], c.done.Load(), len(c.failed))
		for _, err := range c.failed {
			t.Errorf("%s: %v", loads[kind], err)
		}
	}
	load.checkInformer(t)
	overHTTP1.Shutdown()
	if n := lists.Load(); n != 3 {
		t.Errorf("%d lists of 3 informers, want 3", n)
	}
	if t.Failed() {
		t.Log(p.output())
	}
}

// TestSuccessorThatHangs checks that a server exits at a signal, even if its successor neither becomes ready nor exits.
func TestSuccessorThatHangs(t *testing.T) {
	p := newUpgraded(t, "--etcd-servers", serveEtcd(t))
	p.install("#!/bin/sh\ntrap '' TERM\nexec sleep 600\n")
	p.signal(syscall.SIGUSR2)
	p.await(`process \d+ starts`)
	if err := p.Terminate(t); err != nil {
		t.Errorf("exit: %v\n%s", err, p.output())
	}
}

// TestEmbeddedEtcdIsNotShared checks that a server with an embedded etcd logs why it is not upgraded in place, and
// continues to serve.
func TestEmbeddedEtcdIsNotShared(t *testing.T) {
	p := newUpgraded(t, "--unsafe-no-fsync")
	p.signal(syscall.SIGUSR2)
	p.await(`not upgraded, this process continues to serve: two processes cannot open the embedded etcd; restart the server`)
	p.want(http.StatusOK, "/readyz")
}

// TestSystemdHoldsTheSocket checks that a server accepts connections from a socket that systemd has opened. Clients
// wait at the socket while the server restarts.
func TestSystemdHoldsTheSocket(t *testing.T) {
	p := newProcess(t, "--unsafe-no-fsync")
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p.port))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	socket, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	p.Process = proctest.New(t, "the server", func() *exec.Cmd {
		cmd := exec.Command("sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"`, "sh",
			binaries.larder, "serve", "--data-dir", p.dir, "--secure-port", strconv.Itoa(p.port), "--unsafe-no-fsync")
		cmd.ExtraFiles = []*os.File{socket}
		return cmd
	})
	for range 2 {
		waiting := make(chan error, 1)
		go func() {
			_, err := p.status("/livez", "") // any response will do
			waiting <- err
		}()
		p.start()
		p.awaitReady()
		if err := <-waiting; err != nil {
			t.Error(err)
		}
		if err := p.Terminate(t); err != nil {
			t.Errorf("exit: %v\n%s", err, p.Output())
		}
	}
}

// countLists counts the lists of informers.
type countLists struct {
	http.RoundTripper
	n *atomic.Int64
}

func (c countLists) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Query().Get("sendInitialEvents") == "true" {
		c.n.Add(1)
	}
	return c.RoundTripper.RoundTrip(req)
}

// upgraded is a server that is upgraded in place. Its output goes to a file, because its successors also write there.
type upgraded struct {
	*process
	program, log string
}

func newUpgraded(t *testing.T, args ...string) *upgraded {
	t.Helper()
	dir := t.TempDir()
	u := &upgraded{process: newProcess(t, args...), program: filepath.Join(dir, "larder"), log: filepath.Join(dir, "log")}
	u.install("")
	out, err := os.Create(u.log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, pid := range u.pids(`process (\d+) starts`) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		out.Close()
	})
	u.Process = proctest.New(t, "the server", func() *exec.Cmd {
		cmd := exec.Command(u.program, append([]string{"serve", "--data-dir", u.dir, "--secure-port", strconv.Itoa(u.port)}, args...)...)
		cmd.Stdout, cmd.Stderr = out, out
		return cmd
	})
	u.start()
	u.await("ready after")
	return u
}

// install replaces the program with a script, or with larder if script is "".
func (u *upgraded) install(script string) {
	u.t.Helper()
	next := u.program + ".new"
	err := writeProgram(next, script)
	if script == "" {
		err = errors.Join(os.Remove(next), os.Symlink(binaries.larder, next))
	}
	if err := errors.Join(err, os.Rename(next, u.program)); err != nil {
		u.t.Fatal(err)
	}
}

func (u *upgraded) output() string {
	text, err := os.ReadFile(u.log)
	if err != nil {
		u.t.Error(err)
	}
	return string(text)
}

// pids returns the process IDs that a pattern finds in the output.
func (u *upgraded) pids(pattern string) (pids []int) {
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(u.output(), -1) {
		if pid, err := strconv.Atoi(strings.Join(match[1:], "")); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// await waits until the output matches a pattern, and returns the process ID in it.
func (u *upgraded) await(pattern string) (pid int) {
	u.t.Helper()
	proctest.Eventually(u.t, "the output has "+pattern, func() error {
		if text := u.output(); !regexp.MustCompile(pattern).MatchString(text) {
			return errors.New(text)
		}
		return nil
	})
	if pids := u.pids(pattern); len(pids) > 0 {
		return pids[0]
	}
	return 0
}

// probe requests /readyz until ctx ends, each time over a new connection.
func (u *upgraded) probe(ctx context.Context) error {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if code, err := u.status("/readyz", ""); code != http.StatusOK {
			return fmt.Errorf("/readyz: %d %w", code, err)
		}
	}
}

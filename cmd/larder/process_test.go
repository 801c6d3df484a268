package main_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// patience bounds whatever a test waits for; nothing takes nearly as long.
const patience = 60 * time.Second

// process is a `larder serve` that a test drives.
type process struct {
	t    *testing.T
	dir  string
	port int
	args []string

	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has ended
	err    error         // how; read after exited
	output *syncBuffer
}

// syncBuffer is a bytes.Buffer that a process writes while a test reads.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// serve starts a server on a data directory and port of its own and waits until
// it is ready. The test's end stops it.
func serve(t *testing.T, args ...string) *process {
	t.Helper()
	p := newProcess(t, args...)
	p.start()
	p.awaitReady()
	return p
}

func newProcess(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{t: t, dir: filepath.Join(t.TempDir(), "data"), port: freePort(t), args: args}
	t.Cleanup(func() {
		if p.cmd != nil {
			p.kill()
		}
	})
	return p
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// start runs the process, again after it has ended.
func (p *process) start() {
	p.t.Helper()
	args := append([]string{
		"serve", "--data-dir", p.dir, "--bind-address", "127.0.0.1", "--secure-port", strconv.Itoa(p.port),
	}, p.args...)
	p.output, p.exited = new(syncBuffer), make(chan struct{})
	p.cmd = exec.Command(binaries.larder, args...)
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func(cmd *exec.Cmd, exited chan struct{}) {
		p.err = cmd.Wait()
		close(exited)
	}(p.cmd, p.exited)
}

// kill ends the process without warning.
func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.exited
}

// terminate asks the process to end and returns how it did.
func (p *process) terminate() error {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	return p.awaitExit()
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) awaitExit() error {
	p.t.Helper()
	select {
	case <-p.exited:
		return p.err
	case <-time.After(patience):
		p.signal(syscall.SIGQUIT)
		<-p.exited
		p.t.Fatalf("the server does not end:\n%s", p.output)
		return nil
	}
}

func (p *process) url() string { return fmt.Sprintf("https://127.0.0.1:%d", p.port) }

func (p *process) kubeconfig() string { return filepath.Join(p.dir, "admin.kubeconfig") }

// awaitReady waits for the line that the server prints once it is ready.
func (p *process) awaitReady() {
	p.t.Helper()
	eventually(p.t, "the server is ready", func() error {
		select {
		case <-p.exited:
			p.t.Fatalf("the server ended: %v\n%s", p.err, p.output)
		default:
		}
		if !strings.Contains(p.output.String(), "ready after") {
			return errors.New(p.output.String())
		}
		return nil
	})
}

// config is the administrator's.
func (p *process) config() *rest.Config {
	p.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", p.kubeconfig())
	if err != nil {
		p.t.Fatal(err)
	}
	config.QPS = -1
	return config
}

func (p *process) client() kubernetes.Interface {
	p.t.Helper()
	return clientFor(p.t, p.config())
}

func clientFor(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// status asks without a client library, with a bearer token unless it is empty.
func (p *process) status(path, token string) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url()+path, nil)
	if err != nil {
		return 0, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return resp.StatusCode, nil
}

// eventually calls check until it returns nil.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: never: %v", what, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

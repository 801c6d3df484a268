package e2e_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/internal/e2e/e2etest"
	"github.com/larder-io/larder/internal/proctest"
)

// process is a `larder serve` for a test.
type process struct {
	*proctest.Process
	t       *testing.T
	command string // the subcommand
	dir     string
	port    int
	args    []string // may change between two starts
}

// serve starts a server with its own data directory and port, which runs until the end of the test, and waits until it
// is ready.
func serve(t *testing.T, args ...string) *process {
	t.Helper()
	p := newProcess(t, args...)
	p.start()
	p.awaitReady()
	return p
}

func newProcess(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{t: t, command: "serve", dir: filepath.Join(t.TempDir(), "data"), port: proctest.Port(t), args: args}
	p.Process = proctest.New(t, "the server", p.cmd)
	return p
}

func (p *process) cmd() *exec.Cmd {
	return exec.Command(binaries.larder, append([]string{
		p.command, "--data-dir", p.dir, "--bind-address", "127.0.0.1", "--secure-port", strconv.Itoa(p.port),
	}, p.args...)...)
}

// start starts the process, also again after it has exited.
func (p *process) start() {
	p.t.Helper()
	if err := p.Start(); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) url() string { return fmt.Sprintf("https://127.0.0.1:%d", p.port) }

func (p *process) kubeconfig() string { return filepath.Join(p.dir, "admin.kubeconfig") }

// awaitReady waits for the line that the server prints when it is ready.
func (p *process) awaitReady() {
	p.t.Helper()
	p.Await(p.t, "ready after")
}

// config returns the administrator's configuration.
func (p *process) config() *rest.Config {
	p.t.Helper()
	return e2etest.Config(p.t, p.kubeconfig())
}

func (p *process) client() kubernetes.Interface {
	p.t.Helper()
	return kubernetes.NewForConfigOrDie(p.config())
}

// status sends a GET request without a client library, with a bearer token unless token is empty, and returns the
// status code.
func (p *process) status(path, token string) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), proctest.Patience)
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

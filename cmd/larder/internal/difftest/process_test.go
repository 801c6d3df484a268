package difftest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/larder-io/larder/cmd/larder/internal/server"
	"github.com/larder-io/larder/cmd/larder/internal/server/servertest"
	"github.com/larder-io/larder/internal/proctest"
)

// process is a server that a test started.
type process struct {
	*proctest.Process
	client    *http.Client
	name, url string
	ports     []string // of all servers, as in an address; answers contain them
}

func start(t *testing.T, name string, port int, command func() *exec.Cmd) *process {
	t.Helper()
	p := &process{
		Process: proctest.New(t, name, command), name: name, client: newClient("h1"),
		url: fmt.Sprintf("https://127.0.0.1:%d", port), ports: []string{fmt.Sprintf(":%d", port)},
	}
	t.Cleanup(p.client.CloseIdleConnections)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// awaitReady waits until the server reports that it is ready.
func (p *process) awaitReady(t *testing.T) {
	t.Helper()
	p.Eventually(t, "is ready", func() error {
		a := p.ask(request{Method: http.MethodGet, Path: "/readyz"})
		if a.err != nil || a.code != http.StatusOK {
			return fmt.Errorf("%d %v: %s\n%s", a.code, a.err, a.body, p.Output())
		}
		return nil
	})
}

// world is one etcd, the Larder that runs it and, optionally, a kube-apiserver beside it.
type world struct {
	dir, tokens   string
	gates         string // feature gates of both servers
	larder, stock *process
	remote        *httptest.Server  // to which both proxy requests
	revisions     map[string]string // the values of {NAME} in paths
}

// newWorld returns a world with seeded objects. Both servers started after the objects were created and earlier
// revisions were compacted.
func newWorld(t *testing.T, gates string) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{gates: gates, remote: remoteServer(t), dir: filepath.Join(dir, "data"), tokens: filepath.Join(dir, "tokens.csv"), revisions: make(map[string]string)}
	const users = "admin,admin,admin,system:masters\nalice,alice,alice,devs\n"
	if err := os.WriteFile(w.tokens, []byte(users), 0o600); err != nil {
		t.Fatal(err)
	}
	w.startLarder(t, 200*time.Millisecond)
	w.larder.awaitReady(t)
	w.seed(t)
	if err := w.larder.Terminate(t); err != nil {
		t.Fatalf("%v\n%s", err, w.larder.Output())
	}
	ports := w.larder.ports[1:]
	w.startLarder(t, 0)
	w.larder.ports = append(w.larder.ports, ports...)
	w.larder.awaitReady(t)
	if *stockBinary != "" {
		w.startStock(t)
		w.stock.awaitReady(t)
		w.stock.awaitCustoms(t)
		w.larder.ports = append(w.larder.ports, w.stock.ports...)
		w.stock.ports = w.larder.ports
	}
	w.larder.awaitCustoms(t)
	w.change(t)
	return w
}

// advertised is the address of both servers, so that answers do not depend on the machine's address.
const advertised = "192.0.2.1"

func (w *world) startLarder(t *testing.T, compaction time.Duration) {
	t.Helper()
	port := proctest.Port(t)
	w.larder = start(t, "larder", port, proctest.Role(t, roleVariable, servertest.Config{
		Dir: w.dir, Tokens: w.tokens, Port: port, Compaction: compaction, Modes: []string{"RBAC"}, Advertise: advertised, Gates: w.gates,
	}))
}

// startStock starts kube-apiserver on Larder's etcd. Only Larder publishes its endpoint of the kubernetes service:
// two servers at one address would overwrite each other's port.
func (w *world) startStock(t *testing.T) {
	t.Helper()
	port := proctest.Port(t)
	key := filepath.Join(w.dir, "pki", "sa.key")
	args := []string{
		"--etcd-servers=unix://" + filepath.Join(w.dir, "etcd", "sock", "etcd"),
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--cert-dir=" + filepath.Join(w.dir, "stock"),
		"--token-auth-file=" + w.tokens, "--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24",
		"--service-account-issuer=" + server.DefaultIssuer, "--service-account-signing-key-file=" + key, "--service-account-key-file=" + key,
		"--endpoint-reconciler-type=none", "--etcd-compaction-interval=0", "--advertise-address=" + advertised, "--allow-privileged",
	}
	if w.gates != "" {
		args = append(args, "--feature-gates="+w.gates)
	}
	w.stock = start(t, "stock", port, func() *exec.Cmd { return exec.Command(*stockBinary, args...) })
}

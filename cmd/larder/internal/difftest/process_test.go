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

// process is a server that the test has started.
type process struct {
	*proctest.Process
	client    *http.Client
	name, url string
	ports     []string // all servers' ports, as they appear in responses
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
		a := p.send(request{Method: http.MethodGet, Path: "/readyz"})
		if a.err != nil || a.code != http.StatusOK {
			return fmt.Errorf("%d %v: %s\n%s", a.code, a.err, a.body, p.Output())
		}
		return nil
	})
}

// fixture is one etcd, the Larder that runs it and, with -stock, a kube-apiserver.
type fixture struct {
	dir, tokens   string
	gates         string // feature gates of both servers
	larder, stock *process
	remote        *httptest.Server  // the aggregated server of both
	revisions     map[string]string // the values of {NAME} in paths
}

// newFixture returns a fixture with objects. Both servers start after the objects are created and earlier revisions are
// compacted.
func newFixture(t *testing.T, gates string) *fixture {
	t.Helper()
	dir := t.TempDir()
	f := &fixture{gates: gates, remote: remoteServer(t), dir: filepath.Join(dir, "data"), tokens: filepath.Join(dir, "tokens.csv"), revisions: make(map[string]string)}
	const users = "admin,admin,admin,system:masters\nalice,alice,alice,devs\n"
	if err := os.WriteFile(f.tokens, []byte(users), 0o600); err != nil {
		t.Fatal(err)
	}
	f.startLarder(t, 200*time.Millisecond)
	f.larder.awaitReady(t)
	f.seed(t)
	if err := f.larder.Terminate(t); err != nil {
		t.Fatalf("%v\n%s", err, f.larder.Output())
	}
	ports := f.larder.ports[1:]
	f.startLarder(t, 0)
	f.larder.ports = append(f.larder.ports, ports...)
	f.larder.awaitReady(t)
	if *stockBinary != "" {
		f.startStock(t)
		f.stock.awaitReady(t)
		f.stock.awaitCustoms(t)
		f.larder.ports = append(f.larder.ports, f.stock.ports...)
		f.stock.ports = f.larder.ports
	}
	f.larder.awaitCustoms(t)
	f.change(t)
	return f
}

// advertised is the address that both servers publish, so that responses do not depend on the machine's address.
const advertised = "192.0.2.1"

func (f *fixture) startLarder(t *testing.T, compaction time.Duration) {
	t.Helper()
	port := proctest.Port(t)
	f.larder = start(t, "larder", port, proctest.Role(t, roleVariable, servertest.Config{
		Dir: f.dir, Tokens: f.tokens, Port: port, Compaction: compaction, Modes: []string{"RBAC"}, Advertise: advertised, Gates: f.gates,
	}))
}

// startStock starts kube-apiserver on Larder's etcd. Only Larder publishes an endpoint of the kubernetes service,
// because two servers with one address would overwrite each other's port.
func (f *fixture) startStock(t *testing.T) {
	t.Helper()
	port := proctest.Port(t)
	key := filepath.Join(f.dir, "pki", "sa.key")
	args := []string{
		"--etcd-servers=unix://" + filepath.Join(f.dir, "etcd", "sock", "etcd"),
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--cert-dir=" + filepath.Join(f.dir, "stock"),
		"--token-auth-file=" + f.tokens, "--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24",
		"--service-account-issuer=" + server.DefaultIssuer, "--service-account-signing-key-file=" + key, "--service-account-key-file=" + key,
		"--endpoint-reconciler-type=none", "--etcd-compaction-interval=0", "--advertise-address=" + advertised, "--allow-privileged",
	}
	if f.gates != "" {
		args = append(args, "--feature-gates="+f.gates)
	}
	f.stock = start(t, "stock", port, func() *exec.Cmd { return exec.Command(*stockBinary, args...) })
}

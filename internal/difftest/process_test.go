package difftest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/larder-io/larder/internal/server"
)

// patience bounds whatever a test waits for; nothing takes nearly as long.
const patience = 90 * time.Second

// process is a server that a test started.
type process struct {
	name, url string
	ports     []string // of all servers, as in an address: they stand in answers
	cmd       *exec.Cmd
	output    lockedBuffer
	exited    chan struct{} // closed when the process has ended
}

// lockedBuffer is a bytes.Buffer that a process writes while a test reads.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// tail returns the last bytes written.
func (b *lockedBuffer) tail() []byte {
	const most = 4000
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.buf.Bytes()
	return bytes.Clone(all[max(0, len(all)-most):])
}

func start(t *testing.T, name string, port int, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{name: name, url: fmt.Sprintf("https://127.0.0.1:%d", port), ports: []string{fmt.Sprintf(":%d", port)}, cmd: cmd, exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.output, &p.output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-p.exited
	})
	return p
}

// awaitReady waits until the server says so itself.
func (p *process) awaitReady(t *testing.T) {
	t.Helper()
	eventually(t, p.name+" is ready", func() error {
		select {
		case <-p.exited:
			t.Fatalf("%s ended: %s", p.name, p.output.tail())
		default:
		}
		a := p.ask(request{Method: http.MethodGet, Path: "/readyz"})
		if a.err != nil || a.code != http.StatusOK {
			return fmt.Errorf("%d %v: %s\n%s", a.code, a.err, a.body, p.output.tail())
		}
		return nil
	})
}

// stop asks the server to end and waits until it has.
func (p *process) stop(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.exited:
	case <-time.After(patience):
		t.Fatalf("%s does not end: %s", p.name, p.output.tail())
	}
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
		time.Sleep(20 * time.Millisecond)
	}
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

// world is one etcd, the Larder whose it is and, maybe, a stock server beside it.
type world struct {
	dir, tokens   string
	larder, stock *process
	revisions     map[string]string // what {NAME} in a path stands for
}

// newWorld returns a world with seeded objects, whose servers both started after the
// objects were made and what was before them was compacted away.
func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{dir: filepath.Join(dir, "data"), tokens: filepath.Join(dir, "tokens.csv"), revisions: make(map[string]string)}
	const users = "admin,admin,admin,system:masters\nalice,alice,alice,devs\n"
	if err := os.WriteFile(w.tokens, []byte(users), 0o600); err != nil {
		t.Fatal(err)
	}
	w.startLarder(t, 200*time.Millisecond)
	w.larder.awaitReady(t)
	w.seed(t)
	w.larder.stop(t)
	w.startLarder(t, 0)
	w.larder.awaitReady(t)
	if *stockBinary != "" {
		w.startStock(t)
		w.stock.awaitReady(t)
		w.larder.ports = append(w.larder.ports, w.stock.ports...)
		w.stock.ports = w.larder.ports
	}
	w.change(t)
	return w
}

func (w *world) startLarder(t *testing.T, compaction time.Duration) {
	t.Helper()
	port := freePort(t)
	raw, err := json.Marshal(larderConfig{Dir: w.dir, Tokens: w.tokens, Port: port, Compaction: compaction})
	if err != nil {
		t.Fatal(err)
	}
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(executable)
	cmd.Env = append(os.Environ(), roleVariable+"="+string(raw))
	w.larder = start(t, "larder", port, cmd)
}

// startStock starts kube-apiserver on Larder's etcd. Two servers at one address
// would fight over the port in the endpoints of the kubernetes service, so Larder
// alone publishes its own.
func (w *world) startStock(t *testing.T) {
	t.Helper()
	port := freePort(t)
	key := filepath.Join(w.dir, "pki", "sa.key")
	w.stock = start(t, "stock", port, exec.Command(*stockBinary,
		"--etcd-servers=unix://"+filepath.Join(w.dir, "etcd", "sock", "etcd"),
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--cert-dir="+filepath.Join(w.dir, "stock"),
		"--token-auth-file="+w.tokens, "--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24",
		"--service-account-issuer="+server.DefaultIssuer, "--service-account-signing-key-file="+key, "--service-account-key-file="+key,
		"--endpoint-reconciler-type=none", "--etcd-compaction-interval=0",
	))
}

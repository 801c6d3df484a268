package consistency

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-io/larder/kv/kvtest"
)

// patience bounds whatever a test waits for; nothing takes nearly as long.
const patience = 60 * time.Second

// process is a role that the test binary plays, started as often as the test wants.
type process struct {
	t      *testing.T
	env    string // variable=value
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has ended
	output lockedBuffer
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
func (b *lockedBuffer) tail() string {
	const most = 3000
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.buf.Bytes()
	return string(all[max(0, len(all)-most):])
}

func newProcess(t *testing.T, variable string, config any) *process {
	t.Helper()
	raw, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, env: variable + "=" + string(raw)}
	t.Cleanup(p.kill)
	return p
}

func (p *process) start() error {
	executable, err := os.Executable()
	if err != nil {
		return err
	}
	p.cmd, p.exited = exec.Command(executable), make(chan struct{})
	p.cmd.Env = append(os.Environ(), p.env)
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	if err := p.cmd.Start(); err != nil {
		return err
	}
	go func(cmd *exec.Cmd, exited chan struct{}) {
		cmd.Wait()
		close(exited)
	}(p.cmd, p.exited)
	return nil
}

// kill ends the process as SIGKILL does and waits for it.
func (p *process) kill() {
	if p.cmd == nil || p.cmd.Process == nil {
		return
	}
	p.cmd.Process.Kill()
	<-p.exited
}

// cluster is three etcd members and two Larders over them.
type cluster struct {
	members  []*process
	urls     []string // of the members
	replicas []*replica
}

// replica is a Larder.
type replica struct {
	*process
	url    string
	client *http.Client
}

// bearer sends the token with each request.
type bearer struct{ *http.Transport }

func (b bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer tester")
	return b.Transport.RoundTrip(req)
}

func freePorts(t *testing.T, n int) []int {
	t.Helper()
	ports := make([]int, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports
}

// newCluster starts everything, the Larders one after the other, so that the second
// finds what the first made.
func newCluster(t *testing.T, members, replicas int) *cluster {
	t.Helper()
	c := new(cluster)
	ports := freePorts(t, 2*members+replicas)
	address := func(i int) string { return "http://127.0.0.1:" + strconv.Itoa(ports[i]) }
	var names []string
	for i := range members {
		names = append(names, fmt.Sprintf("m%d=%s", i, address(members+i)))
		c.urls = append(c.urls, address(i))
	}
	for i := range members {
		c.members = append(c.members, newProcess(t, memberVariable, kvtest.MemberConfig{
			Name: fmt.Sprintf("m%d", i), Dir: filepath.Join(t.TempDir(), "etcd"), Client: c.urls[i], Peer: address(members + i),
			Cluster: strings.Join(names, ","), HeartbeatMs: 50, VoteMs: 500,
		}))
		if err := c.members[i].start(); err != nil {
			t.Fatal(err)
		}
	}
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(tokens, []byte("tester,tester,tester,system:masters\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range replicas {
		port := ports[2*members+i]
		transport := &http.Transport{
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxIdleConnsPerHost: 100, // a test's own server
		}
		r := &replica{
			process: newProcess(t, larderVariable, larderConfig{
				Dir: filepath.Join(t.TempDir(), "larder"), Tokens: tokens, Port: port, Servers: c.urls,
			}),
			url: "https://127.0.0.1:" + strconv.Itoa(port), client: &http.Client{Transport: bearer{transport}},
		}
		t.Cleanup(transport.CloseIdleConnections)
		c.replicas = append(c.replicas, r)
		if err := r.start(); err != nil {
			t.Fatal(err)
		}
		if err := r.awaitReady(); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// awaitReady waits until the server says so itself.
func (r *replica) awaitReady() error {
	deadline := time.Now().Add(patience)
	for {
		a := r.ask(request{method: http.MethodGet, path: "/readyz"})
		if a.code == http.StatusOK {
			return nil
		}
		select {
		case <-r.exited:
			return fmt.Errorf("a Larder ended: %s", r.output.tail())
		default:
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("a Larder is not ready: %d %v %s\n%s", a.code, a.err, a.body, r.output.tail())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

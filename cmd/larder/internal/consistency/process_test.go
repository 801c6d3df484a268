package consistency

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/larder-io/larder/cmd/larder/internal/server"
	"github.com/larder-io/larder/cmd/larder/internal/server/pki"
	"github.com/larder-io/larder/cmd/larder/internal/server/servertest"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv/kvtest"
)

// cluster is the members of an etcd cluster, and replicas that use it.
type cluster struct {
	members  []*kvtest.Member
	ids      map[string]string // the members' IDs in hexadecimal, by name
	urls     []string          // addresses of the members that bypass the network
	outsider *kvtest.Client
	network  *network
	replicas []*replica
	tokens   string // the token file
	defined  int64  // the revision at which all resources were served; custom resources have no earlier events
}

// replica is a Larder, a kube-apiserver or a relay.
type replica struct {
	*proctest.Process
	name   string
	stock  bool
	relay  bool // may drop events that the store still has
	url    string
	client *http.Client
}

// bearer sends a token with each request.
type bearer struct{ *http.Transport }

func (b bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer tester")
	return b.Transport.RoundTrip(req)
}

// newCluster starts everything. It starts the Larders one after the other, so that a later one finds the objects that
// the first one created.
func newCluster(t *testing.T, members, replicas int) *cluster {
	t.Helper()
	c := &cluster{network: newNetwork(t), ids: make(map[string]string)}
	c.members = kvtest.StartCluster(t, memberVariable, members, func(configs []kvtest.MemberConfig) {
		for i := range configs {
			m := &configs[i]
			m.PeerListen, m.CatchUp = m.Peer, 100
			m.Peer = "http://" + c.network.listen(t, m.Name, strings.TrimPrefix(m.Peer, "http://"), sender)
		}
	})
	c.urls = kvtest.URLs(c.members)
	c.outsider = kvtest.NewClient(t, c.urls)
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	ids, err := c.outsider.IDs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for name, id := range ids {
		c.ids[name] = strconv.FormatUint(id, 16)
	}
	c.tokens = filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(c.tokens, []byte("tester,tester,tester,system:masters\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range replicas {
		c.addReplica(t, "larder"+strconv.Itoa(i), servertest.Config{})
	}
	return c
}

func (c *cluster) addReplica(t *testing.T, name string, config servertest.Config) {
	t.Helper()
	config.Tokens, config.Dir, config.Port, config.Stores = c.tokens, filepath.Join(t.TempDir(), name), proctest.Port(t), c.ways(t, name)
	c.add(t, name, config.Port, false, proctest.Role(t, larderVariable, config))
}

// addStock adds a kube-apiserver.
func (c *cluster) addStock(t *testing.T, binary string) {
	t.Helper()
	dir, port := t.TempDir(), proctest.Port(t)
	key := filepath.Join(dir, "sa.key")
	if err := pki.MakeSigningKey(key); err != nil {
		t.Fatal(err)
	}
	args := []string{
		"--etcd-servers=" + strings.Join(c.ways(t, "stock"), ","), "--etcd-compaction-interval=0",
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(port), "--cert-dir=" + filepath.Join(dir, "certs"),
		"--token-auth-file=" + c.tokens, "--authorization-mode=AlwaysAllow", "--service-cluster-ip-range=10.0.0.0/24",
		"--service-account-issuer=" + server.DefaultIssuer, "--service-account-signing-key-file=" + key, "--service-account-key-file=" + key,
		"--endpoint-reconciler-type=none", "--advertise-address=192.0.2.1", // an address reserved for documentation (RFC 5737)
	}
	c.add(t, "stock", port, true, func() *exec.Cmd { return exec.Command(binary, args...) })
}

// ways returns the addresses at which a replica reaches the members.
func (c *cluster) ways(t *testing.T, name string) (urls []string) {
	t.Helper()
	for _, m := range c.members {
		target := strings.TrimPrefix(m.Config.Client, "http://")
		urls = append(urls, "http://"+c.network.listen(t, m.Config.Name, target, always(name)))
	}
	return urls
}

// add starts a replica and waits until it is ready.
func (c *cluster) add(t *testing.T, name string, port int, stock bool, command func() *exec.Cmd) {
	t.Helper()
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxIdleConnsPerHost: 100, // the test's own server
	}
	t.Cleanup(transport.CloseIdleConnections)
	r := &replica{
		Process: proctest.New(t, name, command),
		name:    name, stock: stock, url: "https://127.0.0.1:" + strconv.Itoa(port), client: &http.Client{Transport: bearer{transport}},
	}
	c.replicas = append(c.replicas, r)
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	r.awaitReady(t)
}

// awaitReady waits until the server reports that it is ready.
func (r *replica) awaitReady(t *testing.T) {
	t.Helper()
	r.Eventually(t, "is ready", func() error {
		a := r.send(request{method: http.MethodGet, path: "/readyz"})
		if a.code != http.StatusOK {
			return fmt.Errorf("%d %v %s", a.code, a.err, a.body)
		}
		return nil
	})
}

package consistency

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/server/servertest"
	"github.com/larder-io/larder/kv/kvtest"
)

// cluster is members of etcd and Larders over them.
type cluster struct {
	members  []*kvtest.Member
	ids      map[string]string // of members by their names, as they write them
	urls     []string          // of the members, past the network
	outsider *kvtest.Outsider
	network  *network
	replicas []*replica
	tokens   string // file with the clients' tokens
}

// replica is a Larder.
type replica struct {
	*proctest.Process
	name   string
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

// newCluster starts everything, the Larders one after the other, so that the second
// finds what the first made.
func newCluster(t *testing.T, members, replicas int) *cluster {
	t.Helper()
	c := &cluster{network: newNetwork(t), ids: make(map[string]string)}
	c.members = kvtest.StartCluster(t, memberVariable, members, func(configs []kvtest.MemberConfig) {
		for i := range configs {
			m := &configs[i]
			m.PeerListen, m.CatchUp = m.Peer, 100
			m.Peer = "http://" + c.network.lay(t, m.Name, strings.TrimPrefix(m.Peer, "http://"), sender)
		}
	})
	c.urls = kvtest.URLs(c.members)
	c.outsider = kvtest.NewOutsider(t, c.urls)
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
	for _, m := range c.members {
		target := strings.TrimPrefix(m.Config.Client, "http://")
		config.Stores = append(config.Stores, "http://"+c.network.lay(t, m.Config.Name, target, always(name)))
	}
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxIdleConnsPerHost: 100, // a test's own server
	}
	t.Cleanup(transport.CloseIdleConnections)
	config.Tokens, config.Dir, config.Port = c.tokens, filepath.Join(t.TempDir(), name), proctest.Port(t)
	r := &replica{
		Process: proctest.New(t, name, proctest.Role(t, larderVariable, config)),
		name:    name, url: "https://127.0.0.1:" + strconv.Itoa(config.Port), client: &http.Client{Transport: bearer{transport}},
	}
	c.replicas = append(c.replicas, r)
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	r.awaitReady(t)
}

// awaitReady waits until the server says so itself.
func (r *replica) awaitReady(t *testing.T) {
	t.Helper()
	r.Eventually(t, "is ready", func() error {
		a := r.ask(request{method: http.MethodGet, path: "/readyz"})
		if a.code != http.StatusOK {
			return fmt.Errorf("%d %v %s", a.code, a.err, a.body)
		}
		return nil
	})
}

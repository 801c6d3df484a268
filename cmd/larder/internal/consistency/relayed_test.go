package consistency

import (
	"context"
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	netutils "k8s.io/utils/net"

	"github.com/larder-io/larder/cmd/larder/internal/relay"
	"github.com/larder-io/larder/cmd/larder/internal/server"
	"github.com/larder-io/larder/internal/proctest"
)

// relayConfig is the configuration of a relay process.
type relayConfig struct {
	Kubeconfig string
	Port       int
}

// runRelay runs a relay until a signal comes. Lists of any size come from its caches.
func runRelay(raw string) error {
	var config relayConfig
	if err := json.Unmarshal([]byte(raw), &config); err != nil {
		return err
	}
	secure := options.NewSecureServingOptions()
	secure.BindAddress, secure.BindPort, secure.ServerCert.CertDirectory = netutils.ParseIPSloppy("127.0.0.1"), config.Port, ""
	s, err := relay.New(relay.Config{
		Kubeconfig: config.Kubeconfig, SecureServing: secure, ConsistentFrom: 1, Idle: time.Hour, ServeStale: time.Minute, Version: server.Version(),
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return s.Run(ctx)
}

// addRelay adds a relay of all replicas, each connection to any of them.
func (c *cluster) addRelay(t *testing.T) *replica {
	t.Helper()
	var larders []string
	for _, r := range c.replicas {
		larders = append(larders, strings.TrimPrefix(r.url, "https://"))
	}
	config := relayConfig{Kubeconfig: filepath.Join(t.TempDir(), "kubeconfig"), Port: proctest.Port(t)}
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"larders": {Server: "https://" + c.network.balance(t, "larders", larders, always("relay")), InsecureSkipTLSVerify: true}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"relay": {Token: "tester"}},
		Contexts:  map[string]*clientcmdapi.Context{"larders": {Cluster: "larders", AuthInfo: "relay"}}, CurrentContext: "larders",
	}, config.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	c.add(t, "relay", config.Port, false, proctest.Role(t, relayVariable, config))
	added := c.replicas[len(c.replicas)-1]
	added.relay = true
	return added
}

// cutRelay keeps the relay from the Larders.
func (n *nemesis) cutRelay(ctx context.Context) error {
	n.hits["cut relay"]++
	n.cut(ctx, link{"relay", "larders"})
	return nil
}

// TestHistoryThroughRelay lets all clients use a relay beside the Larders that are its upstream.
func TestHistoryThroughRelay(t *testing.T) {
	if testing.Short() {
		t.Skip("runs servers against faults for ten seconds")
	}
	if *seed == 0 {
		*seed = time.Now().UnixNano()
	}
	t.Logf("seed %d", *seed)
	c := newCluster(t, 1, 2)
	relayed := c.addRelay(t)
	c.define(t)
	l := &load{cluster: c, truth: follow(t, c.urls), compacted: new(atomic.Int64), given: make(map[version]giver)}
	roles := []role{{4, (*client).write, 30 * time.Millisecond}, {10, (*client).read, 30 * time.Millisecond}}
	l.run(t, *duration/2, roles, func(ctx context.Context, random *rand.Rand) *nemesis {
		n := &nemesis{t: t, cluster: c, truth: l.truth, random: random, compacted: l.compacted, hits: make(map[string]int)}
		larder := func() *replica { return c.replicas[random.IntN(2)] }
		faults := []fault{
			{"compact", n.compact}, {"cut relay", n.cutRelay}, {"kill relay", func(context.Context) error { return n.killOne(relayed) }},
			{"kill larder", func(context.Context) error { return n.killOne(larder()) }},
			{"stop larder", func(ctx context.Context) error { return n.stopOne(ctx, larder()) }},
		}
		if err := n.run(ctx, faults); err != nil {
			t.Error(err)
		}
		return n
	})
	if !strings.Contains(relayed.Output(), "msg=following") {
		t.Error("invalid: the relay follows nothing")
	}
}

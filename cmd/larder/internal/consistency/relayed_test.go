package consistency

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-io/larder/cmd/larder/internal/relay/relaytest"
	"github.com/larder-io/larder/internal/proctest"
)

// addRelay adds a relay. Each of its connections goes to a random replica.
func (c *cluster) addRelay(t *testing.T) *replica {
	t.Helper()
	var larders []string
	for _, r := range c.replicas {
		larders = append(larders, strings.TrimPrefix(r.url, "https://"))
	}
	config := relaytest.Config{
		Dir: t.TempDir(), Upstream: "https://" + c.network.balance(t, "larders", larders, always("relay")), Token: "tester", Port: proctest.Port(t),
	}
	c.add(t, "relay", config.Port, false, proctest.Role(t, relayVariable, config))
	added := c.replicas[len(c.replicas)-1]
	added.relay = true
	return added
}

// cutRelay severs the link from the relay to the Larders.
func (n *nemesis) cutRelay(ctx context.Context) error {
	n.hits["cut relay"]++
	n.cut(ctx, link{"relay", "larders"})
	return nil
}

// TestHistoryThroughRelay has clients use a relay, and the Larders that are its upstream.
func TestHistoryThroughRelay(t *testing.T) {
	if *seed == 0 {
		*seed = time.Now().UnixNano()
	}
	t.Logf("seed %d", *seed)
	c := newCluster(t, 1, 2)
	relayed := c.addRelay(t)
	c.define(t)
	l := &load{cluster: c, truth: follow(t, c.urls), compacted: new(atomic.Int64), observed: make(map[version]observation)}
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
		t.Error("invalid: the relay has no caches")
	}
}

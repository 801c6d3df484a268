package consistency

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/larder-io/larder/kv/kvtest"
)

// nemesis makes things fail, one at a time, and heals each before the next.
type nemesis struct {
	cluster   *cluster
	truth     *truth
	random    *rand.Rand
	compacted *atomic.Int64 // no history is promised before it
	hits      map[string]int
	log       func(format string, args ...any)
}

// run acts until the context ends; what it broke is whole then.
func (n *nemesis) run(ctx context.Context) error {
	faults := map[string]func(context.Context) error{
		"kill leader": n.killLeader, "stop member": n.stopMember, "kill larder": n.killLarder, "compact": n.compact,
	}
	order := []string{"compact", "kill larder", "kill leader", "stop member"}
	for round := 0; ; round++ {
		n.random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, name := range order {
			if !pause(ctx, time.Duration(500+n.random.IntN(800))*time.Millisecond) {
				return nil
			}
			n.log("nemesis: %s at revision %d", name, n.truth.newest())
			if err := faults[name](ctx); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
}

// pause reports whether the context lasted.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// killLeader leaves the cluster to elect another leader before the killed one returns.
func (n *nemesis) killLeader(ctx context.Context) error {
	url, err := kvtest.Leader(ctx, n.cluster.urls)
	if err != nil {
		return nil // none leads: a hit is not counted
	}
	member := n.cluster.members[slices.Index(n.cluster.urls, url)]
	member.kill()
	pause(ctx, time.Duration(1000+n.random.IntN(1500))*time.Millisecond)
	if next, err := kvtest.Leader(context.WithoutCancel(ctx), n.cluster.urls); err == nil && next != url {
		n.hits["kill leader"]++
	}
	return member.start()
}

// stopMember makes a member, maybe the leader, stand still and come back with what it
// knew then.
func (n *nemesis) stopMember(ctx context.Context) error {
	member := n.cluster.members[n.random.IntN(len(n.cluster.members))]
	if err := member.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	pause(ctx, time.Duration(1500+n.random.IntN(1500))*time.Millisecond)
	n.hits["stop member"]++
	return member.cmd.Process.Signal(syscall.SIGCONT)
}

func (n *nemesis) killLarder(context.Context) error {
	replica := n.cluster.replicas[n.random.IntN(len(n.cluster.replicas))]
	replica.kill()
	n.hits["kill larder"]++
	if err := replica.start(); err != nil {
		return err
	}
	return replica.awaitReady()
}

// compact gives up all history but the newest revisions.
func (n *nemesis) compact(ctx context.Context) error {
	to := n.truth.newest() - n.random.Int64N(40)
	if to <= n.compacted.Load() {
		return nil
	}
	n.compacted.Store(to) // before it is, so that no answer is blamed for it
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := kvtest.Compact(bounded, n.cluster.urls, to); err == nil {
		n.hits["compact"]++
	}
	return nil
}

package consistency

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/larder-io/larder/kv/kvtest"
)

// nemesis injects faults, one at a time, and repairs each before it injects the next.
type nemesis struct {
	t         *testing.T
	cluster   *cluster
	truth     *truth
	random    *rand.Rand
	compacted *atomic.Int64 // watches from before this revision may fail
	hits      map[string]int
}

// fault injects a failure and repairs it before it returns.
type fault struct {
	name string
	act  func(context.Context) error
}

func (n *nemesis) faults() []fault {
	want := regexp.MustCompile(*only)
	return slices.DeleteFunc([]fault{
		{"compact", n.compact},
		{"compact apart", n.compactApart},
		{"cut replica", n.cutReplica},
		{"cut members", n.cutMembers},
		{"isolate leader", n.isolateLeader},
		{"kill replica", n.killReplica},
		{"kill leader", n.killLeader},
		{"leave behind", n.leaveBehind},
		{"move leader", n.moveLeader},
		{"start during a failure", n.startOnFailing},
		{"stop replica", n.stopReplica},
		{"stop member", n.stopMember},
	}, func(f fault) bool { return !want.MatchString(f.name) })
}

// run injects faults until the context ends, and then repairs everything.
func (n *nemesis) run(ctx context.Context, faults []fault) error {
	for {
		n.random.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		for _, f := range faults {
			if !pause(ctx, time.Duration(300+n.random.IntN(700))*time.Millisecond) {
				return nil
			}
			n.t.Logf("nemesis: %s at revision %d", f.name, n.truth.newest())
			if err := f.act(ctx); err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
		}
	}
}

// pause waits for d, and reports whether the context lasted.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// while waits, mostly a second or two, so that a fault takes effect.
func (n *nemesis) while(ctx context.Context) {
	d := time.Duration(700+n.random.IntN(1800)) * time.Millisecond
	if n.random.IntN(12) == 0 {
		d += 8 * time.Second
	}
	pause(ctx, d)
}

// leader returns the leader, or nil.
func (n *nemesis) leader(ctx context.Context) *kvtest.Member {
	url, err := n.cluster.outsider.Leader(ctx)
	if err != nil {
		return nil
	}
	return n.cluster.members[slices.Index(n.cluster.urls, url)]
}

// killLeader kills the leader, waits until the others elect a new one, and restarts it.
func (n *nemesis) killLeader(ctx context.Context) error {
	leader := n.leader(ctx)
	if leader == nil {
		return nil // not counted as a fault
	}
	leader.Kill()
	n.while(ctx)
	if next := n.leader(context.WithoutCancel(ctx)); next != nil && next != leader {
		n.hits["kill leader "+leader.Config.Name]++
	}
	return leader.Start()
}

// stopMember pauses a member, which may be the leader, and resumes it with its old state.
func (n *nemesis) stopMember(ctx context.Context) error {
	member := n.member()
	n.hits["stop "+member.Config.Name]++
	return n.stop(ctx, member.Signal)
}

// leaveBehind makes a member miss so many writes, and a change of the leader, that it needs a snapshot.
func (n *nemesis) leaveBehind(ctx context.Context) error {
	leader, behind := n.leader(ctx), n.member()
	if leader == nil || leader == behind {
		return nil
	}
	n.hits["leave behind"]++
	if err := behind.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	n.while(ctx)
	leader.Kill()
	if err := leader.Start(); err != nil {
		return err
	}
	n.while(ctx)
	return behind.Signal(syscall.SIGCONT)
}

// stopReplica pauses a replica and resumes it.
func (n *nemesis) stopReplica(ctx context.Context) error {
	return n.stopOne(ctx, n.replica())
}

func (n *nemesis) stopOne(ctx context.Context, replica *replica) error {
	n.hits["stop "+replica.name]++
	return n.stop(ctx, replica.Signal)
}

func (n *nemesis) stop(ctx context.Context, signal func(syscall.Signal) error) error {
	if err := signal(syscall.SIGSTOP); err != nil {
		return err
	}
	n.while(ctx)
	return signal(syscall.SIGCONT)
}

func (n *nemesis) member() *kvtest.Member {
	return n.cluster.members[n.random.IntN(len(n.cluster.members))]
}

func (n *nemesis) replica() *replica {
	return n.cluster.replicas[n.random.IntN(len(n.cluster.replicas))]
}

func (n *nemesis) killReplica(context.Context) error {
	return n.killOne(n.replica())
}

func (n *nemesis) killOne(replica *replica) error {
	replica.Kill()
	n.hits["kill "+replica.name]++
	if err := replica.Start(); err != nil {
		return err
	}
	replica.awaitReady(n.t)
	return nil
}

// moveLeader transfers the leadership, as for maintenance.
func (n *nemesis) moveLeader(ctx context.Context) error {
	leader, heir := n.leader(ctx), n.member()
	if leader == nil || leader == heir {
		return nil
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	// Only the leader itself accepts the request.
	client := kvtest.NewClient(n.t, []string{leader.Config.Client})
	defer client.Close()
	ids, err := client.IDs(bounded)
	if err != nil {
		return nil
	}
	if _, err := client.MoveLeader(bounded, ids[heir.Config.Name]); err == nil {
		n.hits["move leader"]++
	}
	return nil
}

// startOnFailing starts a replica during a compaction, or while there is no leader.
func (n *nemesis) startOnFailing(ctx context.Context) error {
	replica := n.replica()
	replica.Kill()
	if err := replica.Start(); err != nil {
		return err
	}
	fault := n.killLeader
	if n.random.IntN(2) == 0 {
		fault = n.compact
	}
	pause(ctx, time.Duration(n.random.IntN(1500))*time.Millisecond)
	if err := fault(ctx); err != nil {
		return err
	}
	n.hits["start during a failure"]++
	replica.awaitReady(n.t)
	return nil
}

// between returns the links of two members, in both directions.
func (n *nemesis) between(one, other *kvtest.Member) []link {
	return []link{
		{n.cluster.ids[one.Config.Name], other.Config.Name},
		{n.cluster.ids[other.Config.Name], one.Config.Name},
	}
}

// cut severs links for a while, silently or by breaking connections.
func (n *nemesis) cut(ctx context.Context, links ...link) {
	n.cluster.network.sever(n.random.IntN(2) == 0, links...)
	n.while(ctx)
	n.cluster.network.heal()
}

// isolateLeader cuts the leader off from the other members, but not from replicas. It must not serve the replicas reads
// that lack later changes of the others.
func (n *nemesis) isolateLeader(ctx context.Context) error {
	leader := n.leader(ctx)
	if leader == nil {
		return nil
	}
	var links []link
	for _, m := range n.cluster.members {
		if m != leader {
			links = append(links, n.between(leader, m)...)
		}
	}
	n.cut(ctx, links...)
	if next := n.leader(context.WithoutCancel(ctx)); next != nil && next != leader {
		n.hits["isolate leader"]++
	}
	return nil
}

// cutMembers cuts the link between two members; both still reach the third.
func (n *nemesis) cutMembers(ctx context.Context) error {
	one := n.random.IntN(len(n.cluster.members))
	other := (one + 1) % len(n.cluster.members)
	n.hits["cut members"]++
	n.cut(ctx, n.between(n.cluster.members[one], n.cluster.members[other])...)
	return nil
}

// cutReplica severs the links of a replica to one member, or to all.
func (n *nemesis) cutReplica(ctx context.Context) error {
	replica, all := n.replica(), n.random.IntN(2) == 0
	var links []link
	for _, m := range n.cluster.members {
		if all || len(links) == 0 && n.random.IntN(2) == 0 {
			links = append(links, link{replica.name, m.Config.Name})
		}
	}
	n.hits["cut "+replica.name]++
	n.cut(ctx, links...)
	return nil
}

// compactApart compacts revisions that a replica has not seen.
func (n *nemesis) compactApart(ctx context.Context) error {
	replica := n.replica()
	var links []link
	for _, m := range n.cluster.members {
		links = append(links, link{replica.name, m.Config.Name})
	}
	n.cluster.network.sever(n.random.IntN(2) == 0, links...)
	defer n.cluster.network.heal()
	n.while(ctx)
	n.hits["compact apart"]++
	return n.compact(ctx)
}

// compact compacts all but the newest revisions.
func (n *nemesis) compact(ctx context.Context) error {
	to := n.truth.newest() - n.random.Int64N(40)
	if to <= n.compacted.Load() {
		return nil
	}
	n.compacted.Store(to) // before the compaction, so that no correct response counts as a violation
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if _, err := n.cluster.outsider.Compact(bounded, to); err == nil {
		n.hits["compact"]++
	}
	return nil
}

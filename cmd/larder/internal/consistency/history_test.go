package consistency

import (
	"context"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-io/larder/internal/proctest"
)

// least is the number of operations of each kind without which a run proves nothing. The run lasts until then.
const least = 300

// TestHistory has writers, readers and watchers use two replicas while faults are injected, and checks everything that
// the clients received.
func TestHistory(t *testing.T) {
	if *seed == 0 {
		*seed = time.Now().UnixNano()
	}
	t.Logf("seed %d", *seed)
	var compacted atomic.Int64
	c := newCluster(t, 3, 2)
	if *beside != "" {
		c.addStock(t, *beside)
	}
	c.define(t)
	tr := follow(t, c.urls)
	l := &load{cluster: c, truth: tr, compacted: &compacted, observed: make(map[version]observation)}
	l.run(t, *duration, []role{
		{6, (*client).write, 20 * time.Millisecond}, {2, (*client).transact, 100 * time.Millisecond}, {8, (*client).read, 20 * time.Millisecond},
	}, func(ctx context.Context, random *rand.Rand) *nemesis {
		n := &nemesis{t: t, cluster: c, truth: tr, random: random, compacted: &compacted, hits: make(map[string]int)}
		if err := n.run(ctx, n.faults()); err != nil {
			t.Error(err)
		}
		return n
	})
}

// role is the work of some clients, and its interval.
type role struct {
	clients int
	do      func(*client)
	every   time.Duration
}

// run runs clients, watchers and informers while disturb injects faults, until disturb's context ends. Then it checks
// the history.
func (l *load) run(t *testing.T, length time.Duration, roles []role, disturb func(context.Context, *rand.Rand) *nemesis) {
	t.Helper()
	random := func(of int) *rand.Rand { return rand.New(rand.NewPCG(uint64(*seed), uint64(of))) }
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var clients, watching sync.WaitGroup
	clients.Go(func() {
		pause(ctx, length)
		l.awaitEnough(ctx)
		cancel()
	})
	id := 0
	for _, r := range roles {
		for range r.clients {
			cl := &client{load: l, id: id, random: random(id)}
			clients.Go(func() { cl.run(ctx, r.do, r.every) })
			id++
		}
	}
	watches, stop := context.WithCancel(t.Context())
	defer stop()
	watchers := newWatchers(l, random)
	for _, w := range watchers {
		watching.Go(func() { w.run(watches) })
	}
	following, end := context.WithCancel(t.Context())
	defer end()
	informed := l.informAll(t, following)
	n := disturb(ctx, random(1000))
	clients.Wait()
	l.truth.await(t, l.finish(t, watchers, &client{load: l, id: 999, random: random(999)}))
	enough := time.AfterFunc(proctest.Patience, stop)
	watching.Wait()
	enough.Stop()
	for _, i := range informed {
		i.finish(t)
	}
	end()
	verify(t, l, watchers, informed, n)
}

// awaitEnough waits, for a limited time, for enough writes and reads.
func (l *load) awaitEnough(ctx context.Context) {
	for deadline := time.Now().Add(proctest.Patience); time.Now().Before(deadline); {
		l.mu.Lock()
		writes, reads := len(l.writes), len(l.reads)
		l.mu.Unlock()
		if writes > 2*least && reads > 2*least || !pause(ctx, 100*time.Millisecond) {
			return
		}
	}
}

// newWatchers returns watchers of everything, of each group and of two names: two of each for the first resource, fewer
// for others.
func newWatchers(l *load, random func(int) *rand.Rand) (watchers []*watcher) {
	filters := []filter{{}, {group: "a"}, {group: "b"}, {group: "c"}, {name: "o00"}, {name: "o01"}}
	add := func(of *resource, f filter) {
		id := 100 + len(watchers)
		watchers = append(watchers, &watcher{
			client: &client{load: l, id: id, random: random(id)}, of: of, filter: f, goal: new(atomic.Int64),
		})
	}
	for i, of := range resources {
		if i == 0 {
			filters = append(filters, filters...)
		} else {
			filters = filters[:2]
		}
		for _, f := range filters {
			add(of, f)
		}
	}
	return watchers
}

// finish checks that everything works after the faults: it makes the last events for every watcher, and reads a
// consistent list from every replica. It returns the last revision.
func (l *load) finish(t *testing.T, watchers []*watcher, c *client) int64 {
	t.Helper()
	for _, r := range l.cluster.replicas {
		r.awaitReady(t)
	}
	var last int64
	goals := make(map[*watcher]int64) // set together at the end, because a watcher stops at its goal
	for _, of := range resources {
		for _, name := range []string{"o00", "o01"} {
			for _, group := range groups {
				last = c.force(t, of, name, group)
				for _, w := range watchers {
					if w.of == of && w.filter.selects(group, name) {
						goals[w] = last
					}
				}
			}
		}
	}
	for w, goal := range goals {
		w.goal.Store(goal)
	}
	before := len(l.reads)
	for deadline := time.Now().Add(proctest.Patience); len(l.reads) < before+10; {
		if time.Now().After(deadline) {
			t.Fatal("L: consistent lists no longer succeed")
		}
		c.list(&read{of: configMaps, client: c.id, what: "last list", consistent: true, known: l.known.Load()}, "")
	}
	return last
}

// force writes until a write is acknowledged, and returns its revision.
func (c *client) force(t *testing.T, of *resource, name, group string) int64 {
	t.Helper()
	for deadline := time.Now().Add(proctest.Patience); time.Now().Before(deadline); {
		p := payload{c.next.Add(1), group}
		patch := request{method: http.MethodPatch, path: of.collection + "/" + name, kind: "application/merge-patch+json", body: of.patch(p)}
		if at := c.send(write{of: of, key: name, payload: p}, patch); at != 0 {
			return at
		}
		p = payload{c.next.Add(1), group}
		if at := c.send(write{of: of, key: name, payload: p}, request{method: http.MethodPost, path: of.collection, body: of.json(p, name, "")}); at != 0 {
			return at
		}
	}
	t.Fatal("L: writes are no longer acknowledged")
	return 0
}

// verify runs all checks and logs how much the run has covered.
func verify(t *testing.T, l *load, watchers []*watcher, informed []*informed, n *nemesis) {
	t.Helper()
	counts, writes, reads := make(map[outcome]int), make(map[*resource][]write), make(map[*resource][]*read)
	for _, w := range l.writes {
		counts[w.outcome]++
		writes[w.of] = append(writes[w.of], w)
	}
	for _, r := range l.reads {
		reads[r.of] = append(reads[r.of], r)
	}
	broken, deliveries, expired, notes, entries := l.broken, 0, 0, 0, 0
	for _, of := range resources {
		p := l.truth.past(t, of)
		entries += len(p.entries)
		broken = slices.Concat(broken, checkWrites(p, writes[of]), checkTransactions(p, writes[of]),
			checkLists(p, reads[of]), checkFresh(p, reads[of]), checkMonotonic(reads[of]))
		for _, w := range watchers {
			if w.of == of {
				broken = append(broken, w.verify(p)...)
				deliveries, expired = deliveries+w.deliveries, expired+w.expired
			}
		}
		for _, i := range informed {
			if i.of == of {
				broken = append(broken, i.verify(p)...)
				notes += i.notes
			}
		}
		t.Logf("%v: %d log entries, %d writes, %d reads", of, len(p.entries), len(writes[of]), len(reads[of]))
	}
	t.Logf("%d writes acknowledged, %d rejected, %d unknown; %d reads; %d deliveries, %d watches with 410; %d notifications of %d informers; %d versions compared; %d log entries; faults %v",
		counts[acknowledged], counts[rejected], counts[unknown], len(l.reads), deliveries, expired, notes, len(informed), len(l.observed), entries, n.hits)
	if len(broken) > 0 {
		t.Errorf("seed %d: %s", *seed, first(broken))
	}
	if counts[acknowledged] < least || len(l.reads) < least || deliveries < least {
		t.Errorf("invalid: fewer than %d writes, reads or deliveries", least)
	}
	if len(n.hits) == 0 {
		t.Error("invalid: no fault took effect")
	}
}

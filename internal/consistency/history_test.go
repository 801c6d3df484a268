package consistency

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-io/larder/internal/proctest"
)

// Without so much of everything a run proves nothing; it lasts until there was.
const least = 300

// TestHistory lets writers, readers and watchers use two replicas while things fail,
// and checks all that they were told.
func TestHistory(t *testing.T) {
	if *seed == 0 {
		*seed = time.Now().UnixNano()
	}
	t.Logf("seed %d", *seed)
	var compacted atomic.Int64
	c := newCluster(t, 3, 2)
	tr := follow(t, c.urls)
	l := &load{cluster: c, truth: tr, compacted: &compacted}
	random := func(of int) *rand.Rand { return rand.New(rand.NewPCG(uint64(*seed), uint64(of))) }
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var clients, watching sync.WaitGroup
	clients.Go(func() {
		pause(ctx, *duration)
		l.awaitEnough(ctx)
		cancel()
	})
	for i := range 16 {
		cl := &client{load: l, id: i, random: random(i)}
		do, every := (*client).read, 20*time.Millisecond
		if i < 6 {
			do = (*client).write
		} else if i < 8 {
			do, every = (*client).transact, 100*time.Millisecond
		}
		clients.Go(func() { cl.run(ctx, do, every) })
	}
	watches, stop := context.WithCancel(t.Context())
	defer stop()
	watchers := newWatchers(l, random)
	for _, w := range watchers {
		watching.Go(func() { w.run(watches) })
	}
	n := &nemesis{t: t, cluster: c, truth: tr, random: random(1000), compacted: &compacted, hits: make(map[string]int)}
	if err := n.run(ctx); err != nil {
		t.Error(err)
	}
	clients.Wait()
	tr.await(t, l.finish(t, watchers, &client{load: l, id: 999, random: random(999)}))
	enough := time.AfterFunc(proctest.Patience, stop)
	watching.Wait()
	enough.Stop()
	verify(t, l, tr.past(t), watchers, n)
}

// awaitEnough waits, not for ever, until enough was written and read.
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

// newWatchers returns watchers of everything, of each group and of two names.
func newWatchers(l *load, random func(int) *rand.Rand) (watchers []*watcher) {
	filters := []filter{{}, {group: "a"}, {group: "b"}, {group: "c"}, {name: "o00"}, {name: "o01"}}
	for i := range 2 * len(filters) {
		watchers = append(watchers, &watcher{
			client: &client{load: l, id: 100 + i, random: random(100 + i)}, filter: filters[i%len(filters)], goal: new(atomic.Int64),
		})
	}
	return watchers
}

// finish shows that all is well again: it writes what every watcher is to see, and
// reads a consistent list from every replica. It returns the last revision.
func (l *load) finish(t *testing.T, watchers []*watcher, c *client) int64 {
	t.Helper()
	for _, r := range l.cluster.replicas {
		r.awaitReady(t)
	}
	var last int64
	goals := make(map[*watcher]int64) // set at the end: who reaches its goal goes
	for _, name := range []string{"o00", "o01"} {
		for _, group := range groups {
			last = c.force(t, name, group)
			for _, w := range watchers {
				if w.filter.selects(group, name) {
					goals[w] = last
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
			t.Fatal("L: no consistent list is answered any more")
		}
		c.list(&read{client: c.id, what: "last list", consistent: true, known: l.known.Load()}, "")
	}
	return last
}

// force writes until a write is acknowledged.
func (c *client) force(t *testing.T, name, group string) int64 {
	t.Helper()
	for deadline := time.Now().Add(proctest.Patience); time.Now().Before(deadline); {
		p := payload{c.next.Add(1), group}
		body := fmt.Sprintf(`{"metadata":{"labels":{"g":%q}},"data":{"p":%q}}`, group, p)
		patch := request{method: http.MethodPatch, path: collection + "/" + name, kind: "application/merge-patch+json", body: body}
		if at := c.send(write{key: name, payload: p}, patch); at != 0 {
			return at
		}
		p = payload{c.next.Add(1), group}
		if at := c.send(write{key: name, payload: p}, request{method: http.MethodPost, path: collection, body: p.json(name, "")}); at != 0 {
			return at
		}
	}
	t.Fatal("L: no write is acknowledged any more")
	return 0
}

// verify runs every checker and tells what the run was worth.
func verify(t *testing.T, l *load, p *past, watchers []*watcher, n *nemesis) {
	t.Helper()
	counts := make(map[outcome]int)
	for _, w := range l.writes {
		counts[w.outcome]++
	}
	broken := slices.Concat(l.broken, checkWrites(p, l.writes), checkTransactions(p, l.writes), checkLists(p, l.reads), checkFresh(p, l.reads), checkMonotonic(l.reads))
	deliveries, expired := 0, 0
	for _, w := range watchers {
		broken = append(broken, w.verify(p)...)
		deliveries, expired = deliveries+w.deliveries, expired+w.expired
	}
	t.Logf("%d writes acknowledged, %d refused, %d unknown; %d reads; %d deliveries, %d watches too old; log of %d; hits %v",
		counts[acknowledged], counts[refused], counts[unknown], len(l.reads), deliveries, expired, len(p.entries), n.hits)
	if len(broken) > 0 {
		t.Errorf("seed %d: %s", *seed, first(broken))
	}
	if counts[acknowledged] < least || len(l.reads) < least || deliveries < least {
		t.Errorf("invalid: fewer than %d writes, reads or deliveries", least)
	}
	if len(n.hits) == 0 {
		t.Error("invalid: no fault hit")
	}
}

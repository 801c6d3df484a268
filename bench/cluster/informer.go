package cluster

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"

	"github.com/larder-io/larder/bench"
)

// The timing of client-go's reflectors (tools/cache/reflector.go).
const (
	shortestWatch = 5 * time.Minute // the timeout of a watch is one to two times this
	backoffReset  = 2 * time.Minute // without a failure for this time, the backoff is reset
	veryShort     = time.Second     // a watch that ends sooner without an event has failed
)

// informer watches a collection as client-go's reflectors do. It starts with a WatchList and
// resumes at its last version when a watch ends. It backs off while the server is unreachable, and lists again when
// the server no longer has the version. It keeps the versions of the objects, for a comparison with a list at the end.
type informer struct {
	sim  *simulation
	c    *client
	path string // includes selectors
	// onChange, unless nil, is called when an object appears or disappears, with mu held. It must not block.
	onChange func(name string, exists bool)
	ctx      context.Context
	close    func() // ends the informer

	mu      sync.Mutex
	version uint64            // version of the last event
	items   map[uint64]uint64 // versions by hash of the name; nil until a WatchList has completed
	names   map[uint64]string // names by hash, if onChange is set
	fresh   map[uint64]uint64 // items of an unfinished WatchList, nil otherwise
	lost    bool              // whether simulation.lost counts this informer
	failure error             // error of the last watch

	backoff wait.DelayFunc // used only by the goroutine that runs the informer
}

// newInformer returns an informer that start runs.
func (sim *simulation) newInformer(c *client, path string) *informer {
	f := &informer{sim: sim, c: c, path: path, names: make(map[uint64]string)}
	backoff := wait.Backoff{Duration: 800 * time.Millisecond, Factor: 2, Jitter: 1, Cap: 30 * time.Second, Steps: 10}
	f.backoff = backoff.DelayWithReset(clock.RealClock{}, backoffReset)
	f.ctx, f.close = context.WithCancel(sim.over)
	return f
}

func (i *informer) start() {
	i.setSynced(false)
	i.sim.running.Go(func() {
		defer i.setSynced(true)
		delay, all := time.Duration(0), true
		for bench.Sleep(i.ctx, delay) == nil {
			a := &attempt{all: all, due: time.Now(), phase: i.sim.phase.Load(), lasts: i.watchTimeout()}
			err := i.watch(a)
			if i.ctx.Err() == nil {
				all, delay = i.next(a, err)
			}
		}
	})
}

// setSynced updates simulation.lost, the number of informers without a working watch.
func (i *informer) setSynced(yes bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.lost && yes:
		i.sim.lost.Add(-1)
	case !i.lost && !yes:
		i.sim.lost.Add(1)
	}
	i.lost = !yes
}

// watchTimeout returns the timeout of a watch. The first watches are shorter, so that watches end at different
// times, as in a cluster that has run for a long time.
func (i *informer) watchTimeout() time.Duration {
	d := shortestWatch + rand.N(shortestWatch)
	if i.items == nil {
		d = max(rand.N(d), 20*time.Second)
	}
	return d
}

// attempt is one watch of an informer.
type attempt struct {
	all      bool // whether it begins with all objects
	due      time.Time
	lasts    time.Duration
	phase    *phase
	began    bool // whether the server has accepted it
	gotEvent bool // whether it has received an event
	expired  bool // whether the server no longer has the version
}

func (a *attempt) record(status int, err error) {
	kind := watchAgain
	if a.all {
		kind = watchList
	}
	a.phase.record(kind, time.Since(a.due), status, err)
}

func (i *informer) watch(a *attempt) error {
	path := bench.WithQuery(i.path, "allowWatchBookmarks=true", "watch=true", fmt.Sprintf("timeoutSeconds=%d", int(a.lasts.Seconds())))
	if i.version > 0 {
		path += "&resourceVersion=" + strconv.FormatUint(i.version, 10)
	}
	if a.all {
		path += "&resourceVersionMatch=NotOlderThan&sendInitialEvents=true"
		i.mu.Lock()
		i.fresh = make(map[uint64]uint64)
		i.mu.Unlock()
	}
	resp, err := i.c.send(i.ctx, bench.Request{Method: http.MethodGet, Path: path, Accept: bench.Protobuf, Encoding: "gzip"})
	if err != nil {
		if i.ctx.Err() == nil {
			a.record(bench.StatusOf(err), err)
		}
		return err
	}
	defer resp.Body.Close()
	a.began = true
	if !a.all {
		a.record(http.StatusOK, nil)
		i.setSynced(true)
	}
	events := bench.Events(resp.Body, bench.Protobuf)
	for events.Scan() {
		frame := events.Bytes()
		i.sim.received.Add(int64(len(frame)))
		if err := i.receive(a, watch.EventType(field(frame, eventType)), object(field(field(frame, eventBody), rawExtension))); err != nil {
			return err
		}
	}
	return events.Err()
}

func (i *informer) receive(a *attempt, kind watch.EventType, object []byte) error {
	a.gotEvent = true
	if kind == watch.Error {
		a.expired = bytes.Contains(object, []byte("Expired")) || bytes.Contains(object, []byte("too old"))
		return fmt.Errorf("cluster: a watch of %s failed: %q", i.path, object)
	}
	m := metaOf(object)
	i.mu.Lock()
	if m.version > 0 {
		i.version = m.version
	}
	if kind != watch.Bookmark {
		i.sim.events.Add(1)
		i.applyLocked(kind, m)
	}
	ends := kind == watch.Bookmark && i.fresh != nil && endsInitial(object)
	if ends {
		i.replaceLocked()
	}
	i.mu.Unlock()
	if ends {
		a.record(http.StatusOK, nil)
		i.setSynced(true)
	}
	return nil
}

func (i *informer) applyLocked(kind watch.EventType, m meta) {
	key, to := i.sim.key(m.namespace, m.name), i.items
	if i.fresh != nil {
		to = i.fresh
	}
	if kind == watch.Deleted {
		delete(to, key)
	} else {
		to[key] = m.version
	}
	if i.onChange != nil {
		i.changedLocked(key, string(m.name), kind != watch.Deleted)
	}
}

// changedLocked calls onChange unless the informer knows that the object exists, or does not.
func (i *informer) changedLocked(key uint64, name string, exists bool) {
	if _, known := i.names[key]; known == exists {
		return
	}
	if exists {
		i.names[key] = name
	} else {
		delete(i.names, key)
	}
	i.onChange(name, exists)
}

// key returns a hash of the name of an object.
func (sim *simulation) key(namespace, name []byte) uint64 {
	return maphash.Comparable(sim.seed, [2]string{string(namespace), string(name)})
}

// replaceLocked ends a WatchList. It removes the objects that were not in it.
func (i *informer) replaceLocked() {
	for key, name := range i.names {
		if _, ok := i.fresh[key]; !ok {
			i.changedLocked(key, name, false)
		}
	}
	i.items, i.fresh = i.fresh, nil
}

// next returns whether the watch after a begins with all objects, and the delay before it.
func (i *informer) next(a *attempt, err error) (all bool, delay time.Duration) {
	i.mu.Lock()
	i.failure = err
	all = i.fresh != nil || i.items == nil // the WatchList is incomplete
	i.fresh = nil
	i.mu.Unlock()
	ran := time.Since(a.due)
	if err == nil && ran > a.lasts-2*time.Second {
		return all, 0 // the watch has reached its timeout
	}
	i.setSynced(false)
	switch {
	case a.expired || bench.StatusOf(err) == http.StatusGone:
		i.sim.expired.Add(1)
		return true, 0
	case a.began && (err != nil || a.gotEvent || ran > veryShort):
		return all, 0 // the connection or the watch has ended: resume at the last version
	case errors.Is(err, syscall.ECONNREFUSED) || bench.StatusOf(err) == http.StatusTooManyRequests:
		return all, i.backoff()
	}
	return true, i.backoff()
}

// awaitSynced waits until all informers have synced but the given number.
func (sim *simulation) awaitSynced(ctx context.Context, except int64) error {
	for sim.lost.Load() > except {
		if bench.Sleep(ctx, time.Millisecond) != nil {
			return fmt.Errorf("cluster: %d informers have not synced, one because of: %w", sim.lost.Load(), sim.reason())
		}
	}
	return nil
}

func (sim *simulation) reason() error {
	for _, all := range sim.followed() {
		for _, f := range all {
			f.mu.Lock()
			lost, failure, version, listing := f.lost, f.failure, f.version, f.fresh != nil
			f.mu.Unlock()
			if lost {
				return fmt.Errorf("%s (version %d, listing %t): %w", f.path, version, listing, errors.Join(failure, context.DeadlineExceeded))
			}
		}
	}
	return context.DeadlineExceeded
}

// list returns the versions of all objects at a path, by key.
func (sim *simulation) list(ctx context.Context, path string) (map[uint64]uint64, error) {
	body, err := sim.control.informers.do(ctx, bench.Request{Method: http.MethodGet, Path: path, Accept: bench.Protobuf})
	if err != nil {
		return nil, err
	}
	versions := make(map[uint64]uint64)
	for item, rest := nextField(object(body), listItems); item != nil; item, rest = nextField(rest, listItems) {
		m := metaOf(item)
		versions[sim.key(m.namespace, m.name)] = m.version
	}
	return versions, nil
}

func (sim *simulation) followed() map[string][]*informer {
	all := make(map[string][]*informer)
	add := func(informers ...*informer) {
		for _, f := range informers {
			all[f.path] = append(all[f.path], f)
		}
	}
	add(sim.control.all...)
	for _, n := range sim.nodes {
		add(n.all...)
		n.mu.Lock()
		for _, m := range n.mounts {
			add(m.informer)
		}
		n.mu.Unlock()
	}
	return all
}

func (sim *simulation) watches() int {
	n := 0
	for _, all := range sim.followed() {
		n += len(all)
	}
	return n
}

// differs describes how the informer differs from a list, "" if it does not.
func (i *informer) differs(want map[uint64]uint64) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.items) != len(want) {
		return fmt.Sprintf("%s: %d objects instead of %d", i.path, len(i.items), len(want))
	}
	for key, v := range want {
		if i.items[key] != v {
			return fmt.Sprintf("%s: an object has version %d instead of %d", i.path, i.items[key], v)
		}
	}
	return ""
}

// verify compares all informers with consistent lists of their paths. It repeats a list until its informers do not
// differ, or the limit is over. It counts the informers that differ then, and describes one. It skips Leases, which
// change all the time.
func (sim *simulation) verify(ctx context.Context, limit time.Duration) (n int, what string, err error) {
	const between, lists = 200 * time.Millisecond, 8
	end := time.Now().Add(limit)
	var mu sync.Mutex // guards n and what
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(lists)
	for path, informers := range sim.followed() {
		if strings.HasSuffix(path, "/leases") {
			continue
		}
		group.Go(func() error {
			for {
				want, err := sim.list(ctx, path)
				if err != nil {
					return err
				}
				difference := ""
				informers = slices.DeleteFunc(informers, func(f *informer) bool {
					d := f.differs(want)
					difference = cmp.Or(d, difference)
					return d == ""
				})
				if len(informers) == 0 {
					return nil
				}
				if time.Now().After(end) {
					mu.Lock()
					defer mu.Unlock()
					n, what = n+len(informers), difference
					return nil
				}
				if err := bench.Sleep(ctx, between); err != nil {
					return err
				}
			}
		})
	}
	err = group.Wait()
	return n, what, err
}

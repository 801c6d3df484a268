package cluster

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/larder-io/larder/bench"
)

// The timing of client-go's reflectors (tools/cache/reflector.go).
const (
	shortestWatch = 5 * time.Minute // the timeout of a watch is one to two times this
	firstBackoff  = 800 * time.Millisecond
	mostBackoff   = 30 * time.Second
	backoffReset  = 2 * time.Minute // without a failure for this time, the backoff resets to firstBackoff
	veryShort     = time.Second     // a watch that ends sooner without an event has failed
)

// informer watches a collection as client-go's reflectors do. It starts with a WatchList and
// resumes at its last version when a watch ends. It backs off while the server is unreachable, and lists again when
// the server no longer has the version. It keeps the versions of the objects, for a comparison with a list at the end.
type informer struct {
	sim  *simulation
	c    *client
	path string // includes selectors
	// onEvent, unless nil, is called with each event of an object, with mu held. It must not block.
	onEvent func(kind watch.EventType, m meta)
	ctx     context.Context
	close   func() // ends the informer

	mu      sync.Mutex
	version uint64            // version of the last event
	items   map[uint64]uint64 // versions by hash of the name
	names   map[uint64]string // names by hash, if onEvent is set
	fresh   map[uint64]uint64 // items of an unfinished WatchList, nil otherwise
	synced  bool              // whether a WatchList has completed
	lost    bool              // whether simulation.lost counts this informer
	failure error             // error of the last watch

	// Used only by the goroutine that runs the informer.
	backoff  time.Duration
	failedAt time.Time
}

// newInformer returns an informer that start runs.
func (sim *simulation) newInformer(c *client, path string) *informer {
	f := &informer{sim: sim, c: c, path: path, names: make(map[uint64]string)}
	f.ctx, f.close = context.WithCancel(sim.over)
	return f
}

func (f *informer) start() {
	f.setSynced(false)
	f.sim.running.Go(func() {
		defer f.setSynced(true)
		wait, all := time.Duration(0), true
		for bench.Sleep(f.ctx, wait) == nil {
			a := &attempt{all: all, due: time.Now(), phase: f.sim.phase.Load(), lasts: f.watchTimeout()}
			err := f.watch(a)
			if f.ctx.Err() == nil {
				all, wait = f.next(a, err)
			}
		}
	})
}

// setSynced updates simulation.lost, the number of informers without a working watch.
func (f *informer) setSynced(yes bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.lost && yes:
		f.sim.lost.Add(-1)
	case !f.lost && !yes:
		f.sim.lost.Add(1)
	}
	f.lost = !yes
}

// watchTimeout returns the timeout of a watch. The first watches are shorter, so that watches end at different
// times, as in a cluster that has run for a long time.
func (f *informer) watchTimeout() time.Duration {
	d := shortestWatch + rand.N(shortestWatch)
	if !f.synced {
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

func (f *informer) watch(a *attempt) error {
	path := bench.WithQuery(f.path, "allowWatchBookmarks=true", "watch=true", fmt.Sprintf("timeoutSeconds=%d", int(a.lasts.Seconds())))
	if f.version > 0 {
		path += "&resourceVersion=" + strconv.FormatUint(f.version, 10)
	}
	if a.all {
		path += "&resourceVersionMatch=NotOlderThan&sendInitialEvents=true"
		f.mu.Lock()
		f.fresh = make(map[uint64]uint64)
		f.mu.Unlock()
	}
	resp, err := f.c.send(f.ctx, bench.Request{Method: http.MethodGet, Path: path, Accept: bench.Protobuf, Encoding: "gzip"})
	if err != nil {
		if f.ctx.Err() == nil {
			a.record(bench.StatusOf(err), err)
		}
		return err
	}
	defer resp.Body.Close()
	a.began = true
	if !a.all {
		a.record(http.StatusOK, nil)
		f.setSynced(true)
	}
	frames := bench.Frames{From: resp.Body}
	for {
		frame, err := frames.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		f.sim.received.Add(int64(len(frame)))
		if err := f.receive(a, watch.EventType(field(frame, eventType)), object(field(field(frame, eventBody), rawExtension))); err != nil {
			return err
		}
	}
}

func (f *informer) receive(a *attempt, kind watch.EventType, object []byte) error {
	a.gotEvent = true
	if kind == watch.Error {
		a.expired = bytes.Contains(object, []byte("Expired")) || bytes.Contains(object, []byte("too old"))
		return fmt.Errorf("cluster: a watch of %s failed: %q", f.path, object)
	}
	m := metaOf(object)
	f.mu.Lock()
	if m.version > 0 {
		f.version = m.version
	}
	if kind != watch.Bookmark {
		f.sim.events.Add(1)
		f.applyLocked(kind, m)
	}
	ends := kind == watch.Bookmark && f.fresh != nil && endsInitial(object)
	if ends {
		f.replaceLocked()
	}
	f.mu.Unlock()
	if ends {
		a.record(http.StatusOK, nil)
		f.setSynced(true)
	}
	return nil
}

func (f *informer) applyLocked(kind watch.EventType, m meta) {
	key, to := f.sim.key(m.namespace, m.name), f.items
	if f.fresh != nil {
		to = f.fresh
	}
	if kind == watch.Deleted {
		delete(to, key)
		delete(f.names, key)
	} else {
		to[key] = m.version
	}
	if f.onEvent != nil {
		if kind != watch.Deleted {
			f.names[key] = string(m.name)
		}
		f.onEvent(kind, m)
	}
}

// key returns a hash of the name of an object.
func (sim *simulation) key(namespace, name []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(sim.seed)
	h.Write(namespace)
	h.WriteByte('/')
	h.Write(name)
	return h.Sum64()
}

// replaceLocked ends a WatchList. It removes the objects that were not in it.
func (f *informer) replaceLocked() {
	for key := range f.items {
		if _, ok := f.fresh[key]; !ok && f.onEvent != nil {
			f.onEvent(watch.Deleted, meta{name: []byte(f.names[key])})
			delete(f.names, key)
		}
	}
	f.items, f.fresh, f.synced = f.fresh, nil, true
}

// next returns whether the watch after a begins with all objects, and the delay before it.
func (f *informer) next(a *attempt, err error) (all bool, wait time.Duration) {
	f.mu.Lock()
	f.failure = err
	all = f.fresh != nil || !f.synced // the WatchList is incomplete
	f.fresh = nil
	f.mu.Unlock()
	ran := time.Since(a.due)
	if err == nil && ran > a.lasts-2*time.Second {
		return all, 0 // the watch has reached its timeout
	}
	f.setSynced(false)
	switch {
	case a.expired || bench.StatusOf(err) == http.StatusGone:
		f.sim.expired.Add(1)
		return true, 0
	case a.began && (err != nil || a.gotEvent || ran > veryShort):
		return all, 0 // the connection or the watch has ended: resume at the last version
	case errors.Is(err, syscall.ECONNREFUSED) || bench.StatusOf(err) == http.StatusTooManyRequests:
		return all, f.delay()
	}
	return true, f.delay()
}

// delay returns how long to wait after a failure.
func (f *informer) delay() time.Duration {
	if time.Since(f.failedAt) > backoffReset {
		f.backoff = firstBackoff
	}
	f.failedAt = time.Now()
	d := f.backoff + rand.N(f.backoff)
	f.backoff = min(2*f.backoff, mostBackoff)
	return d
}

func (sim *simulation) awaitAll(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for sim.lost.Load() > 0 {
		if bench.Sleep(ctx, 5*time.Millisecond) != nil {
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
func (f *informer) differs(want map[uint64]uint64) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.items) != len(want) {
		return fmt.Sprintf("%s: %d objects instead of %d", f.path, len(f.items), len(want))
	}
	for key, v := range want {
		if f.items[key] != v {
			return fmt.Sprintf("%s: an object has version %d instead of %d", f.path, f.items[key], v)
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

package cluster

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// What client-go's reflectors do (tools/cache/reflector.go).
const (
	shortestWatch = 5 * time.Minute // a watch is asked to end after this, or up to twice as long
	firstBackoff  = 800 * time.Millisecond
	mostBackoff   = 30 * time.Second
	calm          = 2 * time.Minute // after which the backoff begins anew
	veryShort     = time.Second     // a watch that ends sooner, without an event, has failed
)

// acceptWatch is what typed clients accept.
const acceptWatch = "application/vnd.kubernetes.protobuf"

// informer follows a collection as client-go's reflectors do: it begins with a WatchList, goes
// on where it was when a watch ends, waits longer and longer while the server is not reached,
// and begins anew when the server does not know the version any more. It keeps the versions of
// the objects, so that they can be compared with those that there are.
type informer struct {
	p    *play
	c    *client
	path string // with its selectors
	// heard, if it is not nil, is called with each object that comes or goes, under mu. It
	// must not wait.
	heard func(kind string, m meta)

	mu       sync.Mutex
	version  uint64            // of the last event
	items    map[uint64]uint64 // version by hash of the name
	names    map[uint64]string // if heard is not nil
	fresh    map[uint64]uint64 // of a WatchList under way, else nil
	synced   bool              // it had all objects once
	lost     bool              // counted in play.lost
	closed   bool
	stop     func()
	backoff  time.Duration
	failedAt time.Time
	failure  error // of the last watch
}

// newInformer returns one that start begins.
func (p *play) newInformer(c *client, path string) *informer {
	return &informer{p: p, c: c, path: path}
}

// start begins with a WatchList. It does not wait.
func (f *informer) start() {
	f.mu.Lock()
	f.loseLocked()
	f.mu.Unlock()
	f.p.line.at(time.Now(), func(due time.Time) { f.open(due, true) })
}

// loseLocked notes that it does not follow.
func (f *informer) loseLocked() {
	if !f.lost {
		f.lost = true
		f.p.lost.Add(1)
	}
}

// findLocked notes that it follows again.
func (f *informer) findLocked() {
	if f.lost {
		f.lost = false
		f.p.lost.Add(-1)
	}
}

// close ends it for good.
func (f *informer) close() {
	f.mu.Lock()
	f.closed = true
	f.findLocked()
	stop := f.stop
	f.stop = nil
	f.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// open opens a watch, with all objects first if all is set.
func (f *informer) open(due time.Time, all bool) {
	f.mu.Lock()
	if f.closed || f.p.over.Err() != nil {
		f.mu.Unlock()
		return
	}
	a := &attempt{of: f, all: all, due: due, opened: time.Now(), phase: f.p.phase.Load(), lasts: f.lasts()}
	var query strings.Builder
	query.WriteString(f.path)
	if strings.Contains(f.path, "?") {
		query.WriteByte('&')
	} else {
		query.WriteByte('?')
	}
	fmt.Fprintf(&query, "allowWatchBookmarks=true&watch=true&timeoutSeconds=%d", int(a.lasts.Seconds()))
	if f.version > 0 {
		query.WriteString("&resourceVersion=" + strconv.FormatUint(f.version, 10))
	}
	if all {
		query.WriteString("&resourceVersionMatch=NotOlderThan&sendInitialEvents=true")
		f.fresh = make(map[uint64]uint64)
	}
	f.mu.Unlock()
	stop := f.c.watch(f.p.over, &request{method: http.MethodGet, path: query.String(), accept: acceptWatch}, a)
	f.mu.Lock()
	late := f.closed
	if !late && !a.ended.Load() {
		f.stop = stop
	}
	f.mu.Unlock()
	if late {
		stop()
	}
}

// lasts is how long a watch is asked to last. The first ones are in their midst, as those of a
// cluster that has run for long.
func (f *informer) lasts() time.Duration {
	d := shortestWatch + rand.N(shortestWatch)
	if !f.synced {
		d = max(rand.N(d), 20*time.Second)
	}
	return d
}

// take heeds an event of an attempt.
func (f *informer) take(a *attempt, e *event) {
	m := metaOf(e.object)
	f.mu.Lock()
	defer f.mu.Unlock()
	a.heard = true
	if e.kind == failed {
		a.err = fmt.Errorf("cluster: a watch of %s failed: %q", f.path, e.object)
		a.expired = strings.Contains(string(e.object), "Expired") || strings.Contains(string(e.object), "too old")
		return
	}
	if m.version > 0 {
		f.version = m.version
	}
	if e.kind == bookmark {
		if f.fresh != nil && e.endsInitial() {
			f.replaceLocked()
			a.established(http.StatusOK)
		}
		return
	}
	f.p.events.Add(1)
	key := f.keyLocked(m)
	to := f.items
	if f.fresh != nil {
		to = f.fresh
	}
	if e.kind == deleted {
		delete(to, key)
		delete(f.names, key)
	} else {
		to[key] = m.version
		if f.heard != nil {
			f.names[key] = string(m.name)
		}
	}
	if f.heard != nil {
		f.heard(e.kind, m)
	}
}

// keyLocked is the key of an object.
func (f *informer) keyLocked(m meta) uint64 {
	var h maphash.Hash
	h.SetSeed(f.p.seed)
	h.Write(m.namespace)
	h.WriteByte('/')
	h.Write(m.name)
	if f.heard != nil && f.names == nil {
		f.names = make(map[uint64]string)
	}
	return h.Sum64()
}

// replaceLocked ends a WatchList: what was not in it has gone.
func (f *informer) replaceLocked() {
	for key := range f.items {
		if _, ok := f.fresh[key]; !ok && f.heard != nil {
			f.heard(deleted, meta{name: []byte(f.names[key])})
			delete(f.names, key)
		}
	}
	f.items, f.fresh, f.synced = f.fresh, nil, true
}

// again opens the next watch when one has ended.
func (f *informer) again(a *attempt, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stop = nil
	if f.closed || f.p.over.Err() != nil {
		return
	}
	f.failure = err
	all := f.fresh != nil // it was not complete
	f.fresh = nil
	var refusal *statusError
	wait := time.Duration(0)
	switch {
	case err == nil && a.began && time.Since(a.due) > a.lasts-2*time.Second:
		// It has lasted as long as it was asked to.
	case err == nil && a.began && !a.heard && time.Since(a.opened) < veryShort:
		f.loseLocked()
		all, wait = true, f.delayLocked()
	case err == nil && a.began:
		f.loseLocked()
	case a.began && !a.expired:
		f.loseLocked() // the connection has ended
	case a.expired || errors.As(err, &refusal) && refusal.status == http.StatusGone:
		f.loseLocked()
		all = true
		f.p.expired.Add(1)
	case errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &refusal) && refusal.status == http.StatusTooManyRequests:
		f.loseLocked()
		wait = f.delayLocked()
	default:
		f.loseLocked()
		all, wait = true, f.delayLocked()
	}
	f.p.line.at(time.Now().Add(wait), func(due time.Time) { f.open(due, all || !f.synced) })
}

// delayLocked is for how long to wait after a failure.
func (f *informer) delayLocked() time.Duration {
	if time.Since(f.failedAt) > calm {
		f.backoff = firstBackoff
	}
	f.failedAt = time.Now()
	d := f.backoff + rand.N(f.backoff)
	f.backoff = min(2*f.backoff, mostBackoff)
	return d
}

// attempt is one watch of an informer. It is the sink of its answer.
type attempt struct {
	of      *informer
	all     bool
	due     time.Time
	lasts   time.Duration
	phase   *phase
	status  int
	opened  time.Time
	began   bool // it has been accepted
	heard   bool // an event
	expired bool // the version is not known any more
	err     error
	refusal []byte
	frames  frames
	ended   flag
}

// head implements sink.
func (a *attempt) head(status int) {
	a.status = status
	if status != http.StatusOK {
		return
	}
	a.began = true
	if !a.all {
		f := a.of
		f.mu.Lock()
		a.established(status)
		f.mu.Unlock()
	}
}

// established records that the informer follows: with the head of the answer, or when it has
// all objects. The caller holds the informer's mu.
func (a *attempt) established(status int) {
	kind := watchAgain
	if a.all {
		kind = watchList
	}
	a.phase.record(kind, time.Since(a.due), status, nil)
	a.of.findLocked()
}

// data implements sink.
func (a *attempt) data(p []byte) {
	a.of.p.received.Add(int64(len(p)))
	if a.status != http.StatusOK {
		a.refusal = append(a.refusal, p[:min(len(p), 1<<10)]...)
		return
	}
	if err := a.frames.add(p, func(e *event) { a.of.take(a, e) }); err != nil && a.err == nil {
		a.err = err
	}
}

// end implements sink.
func (a *attempt) end(err error) {
	a.ended.set()
	if a.err != nil {
		err = a.err
	}
	if err == nil && a.status != http.StatusOK {
		err = refused(&request{method: "WATCH", path: a.of.path}, a.status, a.refusal)
	}
	f := a.of
	if err != nil && !errors.Is(err, errCancelled) && f.p.over.Err() == nil && !a.began {
		kind := watchAgain
		if a.all {
			kind = watchList
		}
		a.phase.record(kind, 0, a.status, err)
	}
	f.again(a, err)
}

// awaitAll waits until all informers follow.
func (p *play) awaitAll(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for p.lost.Load() > 0 {
		select {
		case <-ctx.Done():
			return fmt.Errorf("cluster: %d informers do not follow, one because of: %w", p.lost.Load(), p.reason())
		case <-tick.C:
		}
	}
	return nil
}

// reason is why an informer does not follow.
func (p *play) reason() error {
	for _, all := range p.followed() {
		for _, f := range all {
			f.mu.Lock()
			lost, failure := f.lost, f.failure
			f.mu.Unlock()
			if lost {
				return fmt.Errorf("%s (version %d, listing %t): %w", f.path, f.version, f.fresh != nil, errors.Join(failure, context.DeadlineExceeded))
			}
		}
	}
	return context.DeadlineExceeded
}

package watch

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/invariants"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// errClosed says that the Hub's Run has ended.
var errClosed = errors.New("watch: the hub is closed")

// ErrReplaced says that the store was replaced: the Watcher's deliveries belong to a history that has
// ended, and no watch can resume at its revisions.
var ErrReplaced = errors.New("watch: the store's history was replaced")

const (
	// defaultBacklog is far more than a reading watcher lags behind.
	defaultBacklog = 1024
	// readLimit is how many events are read from the Log at a time. Watchers are
	// woken once for all of them.
	readLimit = 64
)

// Config configures a Hub.
type Config struct {
	// Cache is the cache of the watched resource. Its OnAppend must call [Hub.Notify].
	Cache *cache.Cache

	// OnClose, if set, is called when a Watcher that has delivered something is closed, before [Watcher.Close] returns.
	// Its parameters are the history that the Watcher followed ([cache.Snapshot.History]) and the revision of its last
	// delivery or bookmark. It is called on any goroutine, without the package's locks.
	OnClose func(history uint64, revision int64)

	// backlog is the maximum length of a chain; 0 means defaultBacklog. Only tests set it.
	backlog int
}

// Hub reads one resource's Log and publishes each event to the groups of watchers that select it.
type Hub struct {
	cache   *cache.Cache
	log     *cache.Log
	backlog int
	onClose func(history uint64, revision int64) // Config.OnClose
	notify  chan struct{}                        // has an element while the Log may have more
	counts  counters

	// Everything before donePosition, and everything at or below doneRevision, is
	// published in the chains.
	donePosition atomic.Uint64
	doneRevision atomic.Int64

	mu      sync.Mutex
	epoch   uint64         // of the groups
	history uint64         // of the epoch
	next    cache.Position // of the next event to publish; between two revisions
	groups  map[groupKey]*group
	router  *router
	closed  bool

	events []*cache.Event // scratch of step
	toWake []*group       // empty between steps
}

// counters back [Stats].
type counters struct {
	watchers, groups atomic.Int64
	events, lapped   atomic.Uint64
	initial, outside atomic.Uint64
	sharded          atomic.Int64
}

// Stats counts the work of a Hub since it was made.
type Stats struct {
	// Watchers and Groups are current counts.
	Watchers, Groups int
	// Events counts the events that the Hub has read.
	Events uint64
	// Lapped counts watchers that ended because the Log had dropped their next event.
	Lapped uint64
	// Initial counts the initial objects that watchers delivered.
	Initial uint64
	// Sharded is the number of watchers with a shard. OutsideShard counts objects outside their shards: for each
	// event and watcher, the object before and the one after.
	Sharded      int
	OutsideShard uint64
}

// Options are the filter and the start of a Watcher.
type Options struct {
	// Namespace and Name, if not empty, narrow the scope.
	Namespace, Name string
	// Label and Field select in the scope. The Hub takes ownership of them. Nil selects everything.
	Label labels.Selector
	Field fields.Selector
	// Shard also selects. Nil selects everything.
	Shard *cache.Shard

	// Initial is a Snapshot whose objects are delivered first, as Added. After is then ignored.
	Initial *cache.Snapshot
	// After is the revision after which to begin. It may be in the future.
	After int64

	// Bookmarks requests InitialEnd after the initial objects, and enables
	// [Watcher.Bookmark].
	Bookmarks bool

	// Wake, if set, replaces [Watcher.Ready] and [Watcher.Next], for callers without a waiting goroutine. After Poll
	// has returned nothing, it is called when there may be something to read. Close also calls it. It is called on any
	// goroutine with the package's locks held, so it must not block or call this package.
	Wake func()
}

// New makes a Hub. It publishes nothing before Run.
func New(config Config) (*Hub, error) {
	if config.Cache == nil {
		return nil, errors.New("watch: Config.Cache is nil")
	}
	return &Hub{
		cache:   config.Cache,
		log:     config.Cache.Log(),
		backlog: cmp.Or(config.backlog, defaultBacklog),
		onClose: config.OnClose,
		notify:  make(chan struct{}, 1),
		groups:  make(map[groupKey]*group),
		router:  newRouter(),
		events:  make([]*cache.Event, 0, readLimit),
	}, nil
}

// Notify tells the Hub that the Log has new events or was restarted. It never waits.
func (h *Hub) Notify() {
	select {
	case h.notify <- struct{}{}:
	default:
	}
}

// Stats returns the counters.
func (h *Hub) Stats() Stats {
	return Stats{
		Watchers: int(h.counts.watchers.Load()), Groups: int(h.counts.groups.Load()),
		Events: h.counts.events.Load(), Lapped: h.counts.lapped.Load(), Initial: h.counts.initial.Load(),
		Sharded: int(h.counts.sharded.Load()), OutsideShard: h.counts.outside.Load(),
	}
}

// Lag returns how many watchers have something to read, and how long ago the slowest of these was
// signalled. Watchers that still read their initial objects count only as behind.
func (h *Hub) Lag() (behind int, slowest time.Duration) {
	h.mu.Lock()
	groups := slices.Collect(maps.Values(h.groups))
	h.mu.Unlock()
	now, worst := time.Now().UnixNano(), int64(0)
	for _, g := range groups {
		g.lag(now, &behind, &worst)
	}
	return behind, time.Duration(worst)
}

// Run publishes events to the watchers until ctx is done, then ends all watchers. It
// returns ctx's error. It may be called once.
func (h *Hub) Run(ctx context.Context) error {
	defer h.close()
	for {
		if h.step() && ctx.Err() == nil {
			continue
		}
		select {
		case <-ctx.Done():
			for h.step() {
			}
			return ctx.Err()
		case <-h.notify:
		}
	}
}

// step publishes the events of one read of the Log. It reports whether there may be more without another Notify.
func (h *Hub) step() bool {
	from := h.position()
	events, _, err := h.log.Read(from, h.events[:0])
	more := len(events) >= readLimit
	switch {
	case errors.Is(err, cache.ErrReset):
		// The Log was restarted; the Cache will call Notify.
	case err != nil:
		h.skip(from)
		more = true
	default:
		h.publish(events)
	}
	if len(h.toWake) > 0 {
		now := time.Now().UnixNano()
		for _, g := range h.toWake {
			g.wake(false, now)
		}
	}
	clear(h.toWake)
	h.toWake = h.toWake[:0]
	clear(events)
	return more
}

// position returns the position of the next event to publish.
func (h *Hub) position() cache.Position {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.enterEpochLocked()
	return h.next
}

// publish appends events to the chains that select them. It holds the lock for one revision at a time.
func (h *Hub) publish(events []*cache.Event) {
	for len(events) > 0 {
		n := 1
		for !events[n-1].Last {
			n++
		}
		if !h.publishRevision(events[:n]) {
			return
		}
		events = events[n:]
	}
}

// publishRevision appends the events of one revision to the chains that select them. It returns false if the Hub has
// entered another epoch meanwhile.
func (h *Hub) publishRevision(events []*cache.Event) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if events[0].Pos != h.next {
		return false
	}
	before := len(h.toWake)
	for _, e := range events {
		passed := h.router.visitCandidates(e, func(g *group) {
			if g.shard != nil {
				h.counts.outside.Add(g.countOutsideShard(e) * uint64(len(g.watchers)))
			}
			if g.appendLocked(e) {
				h.toWake = append(h.toWake, g)
			}
		})
		h.counts.outside.Add(passed)
	}
	last := events[len(events)-1]
	h.next = last.Pos + 1
	for _, g := range h.toWake[before:] {
		g.publishLocked(h.next, h.backlog)
	}
	h.doneRevision.Store(last.Revision)
	h.donePosition.Store(uint64(h.next))
	h.counts.events.Add(uint64(len(events)))
	if invariants.Enabled {
		h.checkLocked()
	}
	return true
}

// skip continues at the oldest event of the Log, which has dropped the events at from. It cuts the chains, so every
// watcher reads the Log and gets cache.ErrTooOld.
func (h *Hub) skip(from cache.Position) {
	h.mu.Lock()
	defer h.mu.Unlock()
	oldest := h.log.Oldest()
	next, err := h.log.After(oldest)
	if err != nil || h.next != from {
		return // the Log or the Hub has advanced meanwhile; the next step checks again
	}
	for _, g := range h.groups {
		g.cutLocked(from, next)
		h.toWake = append(h.toWake, g)
	}
	h.next = next
	h.doneRevision.Store(oldest)
	h.donePosition.Store(uint64(next))
}

// enterEpochLocked ends the groups of the previous epoch if there is a new one.
func (h *Hub) enterEpochLocked() {
	s := h.cache.Snapshot()
	if s.Epoch() == h.epoch {
		return
	}
	h.endLocked()
	// A Snapshot may be ahead of the Log, but the chains must not be: a watcher reads the Log up to their start.
	h.epoch, h.history, h.next = s.Epoch(), s.History(), min(s.Position(), h.log.Next())
	h.doneRevision.Store(0)
	h.donePosition.Store(uint64(h.next))
}

func (h *Hub) endLocked() {
	for _, g := range h.groups {
		g.end()
	}
	h.counts.groups.Add(int64(-len(h.groups)))
	h.groups = make(map[groupKey]*group)
	h.router = newRouter()
}

// close ends everything. Run calls it last.
func (h *Hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	h.endLocked()
}

// checkLocked asserts the invariants between steps. It walks everything.
func (h *Hub) checkLocked() {
	for id, g := range h.groups {
		n := g.open.Load()
		invariants.Assertf(g.id == id, "watch: group %v filed under %v", g.id, id)
		invariants.Assertf(!g.touched && n.next.Load() == nil && !n.truncated, "watch: group %v has no open node", id)
		invariants.Assertf(n.start <= h.next, "watch: chain of %v begins at %d, the hub is at %d", id, n.start, h.next)
		g.mu.Lock()
		invariants.Assertf(len(g.watchers) > 0, "watch: group %v without watchers", id)
		for i, w := range g.watchers {
			invariants.Assertf(w.slot == i && w.group == g, "watch: watcher %d of %v has slot %d", i, id, w.slot)
		}
		g.mu.Unlock()
	}
}

// Watch makes a Watcher. The error is cache.ErrTooOld if the Log does not reach back to Options.After, and
// cache.ErrNotReady before the Cache is loaded. Watch also fails after Run has ended. A Watcher may be made, and read
// its initial objects, before Run is called.
func (h *Hub) Watch(options Options) (*Watcher, error) {
	f, id := newFilter(options)
	w := newWatcher(h, options, &f)

	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, errClosed
	}
	h.enterEpochLocked()
	if h.epoch == 0 || !h.cache.Ready() {
		return nil, cache.ErrNotReady
	}
	if options.Initial != nil && options.Initial.Epoch() != h.epoch {
		w.state, w.err = closed, io.EOF // its epoch has ended
		return w, nil
	}
	if options.Initial == nil {
		var err error
		if w.next, err = h.log.After(options.After); err != nil {
			return nil, err
		}
	}
	g := h.groups[id]
	if g == nil {
		g = newGroup(f, id, h.next)
		g.history = h.history
		h.groups[id] = g
		h.router.add(g)
		h.counts.groups.Add(1)
	}
	w.group, w.countedFrom = g, h.next
	g.attach(w)
	h.counts.watchers.Add(1)
	if g.shard != nil {
		h.counts.sharded.Add(1)
		h.router.countWatchers(g, 1)
	}
	return w, nil
}

// release removes w from its group, and an empty group from the Hub.
func (h *Hub) release(w *Watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := w.group
	if g == nil {
		return
	}
	h.counts.watchers.Add(-1)
	if g.shard != nil {
		h.counts.sharded.Add(-1)
		if h.groups[g.id] == g {
			h.router.countWatchers(g, -1)
		}
	}
	if !g.detach(w) || h.groups[g.id] != g {
		return
	}
	delete(h.groups, g.id)
	h.router.remove(g)
	h.counts.groups.Add(-1)
}

package relay

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/larder-io/larder/httpapi/reads"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/relay"
	"github.com/larder-io/larder/kv"
)

const (
	// loadTimeout is how long a request waits until its resource has loaded. Then it goes through.
	loadTimeout = 30 * time.Second
	// refusedFor is how long the requests for a resource that cannot be followed go through before the relay
	// tries again.
	refusedFor = 30 * time.Second
	// heartbeat is longer than the interval of the upstream's bookmarks: a watch is compared with the upstream
	// only if they do not come.
	heartbeat = 75 * time.Second
	// probeAfter is how long a watch sends nothing before the relay asks for a proof that it is current.
	probeAfter = 65 * time.Second
	// checkInterval is how often the upstream is asked whether it still lets the relay list and watch a resource, and
	// whether its etcd was restored.
	checkInterval = time.Minute
)

// followed is a resource with a cache that follows the upstream.
type followed struct {
	gvr         schema.GroupVersionResource
	cancel      context.CancelFunc
	alive       context.Context // ends when it is no longer followed
	initialized chan struct{}   // closed once the fields below are set

	endpoint *registry.Endpoint
	custom   *reads.Resource // of a custom resource
	crd      crdVersion      // of a custom resource
	store    *relay.Store
	tail     *kv.Tail
	err      error // why it cannot be followed

	lastUsed   atomic.Int64 // in nanoseconds since the epoch
	ended      atomic.Int64 // when alive ended; 0 before
	loaded     atomic.Int64 // bytes of the objects in the last load, as far as it has come
	rejected   atomic.Bool  // MemoryLimit had no room for it, or it may not be watched
	notFreshAt atomic.Int64 // when the cache last could not be proven current; 0 if never
	minor      atomic.Int64 // the version of the servers that fill the cache of a built-in resource; 0 before the first response
	users      atomic.Int64 // that have acquired it
}

// stored returns the resource with the cache.
func (f *followed) stored() *registry.Resource { return f.endpoint.View.Resource }

// hasCache reports whether f has a cache, loaded or not.
func (f *followed) hasCache() bool {
	select {
	case <-f.initialized:
		return f.err == nil
	default:
		return false
	}
}

// idle reports whether nothing has read f for a while, or it is time to try again to follow it.
func (f *followed) idle(limit time.Duration) bool {
	if ended := f.ended.Load(); ended != 0 {
		pause := refusedFor
		if f.rejected.Load() {
			pause = rejectedFor
		}
		return time.Since(time.Unix(0, ended)) > pause
	}
	if f.hasCache() && f.stored().Hub.Stats().Watchers > 0 {
		f.lastUsed.Store(time.Now().UnixNano()) // a watch reads as long as it is open
	}
	return f.hasCache() && f.users.Load() == 0 && time.Since(time.Unix(0, f.lastUsed.Load())) > limit
}

// served returns the resource that serves reads of f. from serves the built-in resource in a server with a store.
func (f *followed) served(from *reads.Resource) *reads.Resource {
	if f.custom != nil {
		return f.custom
	}
	made := *from
	made.Endpoint, made.View = f.endpoint, f.endpoint.View
	return &made
}

// acquire returns the resource that a request names, and begins to follow it if it is not followed yet. It
// returns nil outside of Run. The caller releases it.
func (r *Relay) acquire(gvr schema.GroupVersionResource) *followed {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.followed[gvr]
	if f == nil {
		if r.running == nil {
			return nil
		}
		f = &followed{gvr: gvr, initialized: make(chan struct{})}
		f.alive, f.cancel = context.WithCancel(r.running)
		r.followed[gvr] = f
		r.work.Go(func() { r.follow(f) })
	}
	f.users.Add(1)
	return f
}

func (f *followed) release() {
	f.lastUsed.Store(time.Now().UnixNano())
	f.users.Add(-1)
}

// follow follows a resource until f.cancel is called, or the upstream refuses to list or watch it.
func (r *Relay) follow(f *followed) {
	f.lastUsed.Store(time.Now().UnixNano())
	f.err = r.make(f)
	close(f.initialized)
	if f.err == errNotServed {
		r.unfollow(f) // clients may name any number of versions
		return
	}
	err := f.err
	if err == nil {
		r.config.Logger.Info("following", "resource", f.gvr)
		if err = f.run(); f.store.WatchRefused() {
			f.rejected.Store(true) // a load for each of several attempts would cost too much
		}
	}
	if f.alive.Err() == nil {
		r.config.Logger.Info("not following", "resource", f.gvr, "error", err)
	}
	f.ended.Store(time.Now().UnixNano())
	f.cancel()
}

// errNotServed says that no CRD serves a custom resource in the requested version.
var errNotServed = errors.New("relay: no CRD serves the resource")

// make makes the cache of f.
func (r *Relay) make(f *followed) (err error) {
	e := r.builtIn(f.gvr)
	if e == nil {
		return r.makeCustom(f)
	}
	f.endpoint, err = r.config.Registry.Follow(e, r.source(f, e.GVK.Kind, e.Namespaced, true, e.View.Resource.Root()))
	return err
}

// builtIn returns the endpoint of a built-in resource in the version in which it is cached, nil if there is none.
func (r *Relay) builtIn(gvr schema.GroupVersionResource) *registry.Endpoint {
	e := r.config.Registry.Endpoint(gvr, "")
	if e == nil || e.View == nil || e.View.Resource.Codec().Canonical != e.GVK {
		return nil
	}
	return e
}

// source makes the store of f and its tail. prefix begins the keys.
func (r *Relay) source(f *followed, kind string, namespaced, protobuf bool, prefix string) registry.Override {
	client, maxPage := r.config.Client, r.config.MemoryLimit.limit/2
	if f.gvr == crdResource() {
		maxPage = 0
	} else if protobuf {
		checked := *client
		checked.Transport = versionTransport{r, f, cmp.Or(client.Transport, http.DefaultTransport)}
		client = &checked
	}
	f.store = relay.NewStore(relay.StoreConfig{
		Client: client, Base: r.config.Upstream, Resource: f.gvr, Kind: kind, Namespaced: namespaced, Protobuf: protobuf, Redefined: !protobuf,
		Prefix: prefix, Logger: r.config.Logger, MaxPage: maxPage,
		Loaded: func(first bool, bytes int64) {
			if first {
				f.loaded.Store(0)
			}
			if bytes < 0 {
				r.config.Logger.Warn("no room for a resource with a large page, its requests go through", "resource", f.gvr)
				f.rejected.Store(true)
				f.cancel()
				return
			}
			f.loaded.Add(bytes)
			r.config.MemoryLimit.makeRoom()
		},
	})
	f.tail = kv.NewTail(kv.TailConfig{Store: f.store, Prefix: prefix, Heartbeat: heartbeat, Logger: r.config.Logger})
	return registry.Override{Store: f.store, Tail: f.tail}
}

// run runs the store, its tail and the cache until f.alive ends, or the upstream refuses to list or watch the resource.
func (f *followed) run() error {
	defer f.stored().Retire()
	group, ctx := errgroup.WithContext(f.alive)
	group.Go(func() error { return f.awaitRefusal(ctx) })
	group.Go(func() error { return f.store.Run(ctx) })
	group.Go(func() error { return f.tail.Run(ctx) })
	group.Go(func() error { return f.stored().Run(ctx) })
	return group.Wait()
}

// awaitRefusal returns the upstream's error when it refuses to list or watch the resource, or no longer serves it. At the
// first check one refusal to list it is enough; otherwise only the third in a row counts: a server that has just
// started, or has not loaded its roles, may refuse temporarily.
func (f *followed) awaitRefusal(ctx context.Context) error {
	refused, asked := 0, time.Time{}
	return wait.PollUntilContextCancel(ctx, contactInterval, true, func(ctx context.Context) (bool, error) {
		if !f.store.Refused() {
			refused = 0
		}
		if first := asked.IsZero(); f.store.Refused() || time.Since(asked) >= checkInterval {
			err := f.store.Health(ctx)
			asked = time.Now()
			switch {
			case !relay.IsRefusal(err):
				refused = 0
			case first && !f.store.WatchRefused() || refused == 2:
				return false, err
			default:
				refused++
			}
		}
		if f.store.Silence() > probeAfter { // something may cut watches before their bookmarks
			_ = f.store.RequestProgress(ctx)
		}
		return false, nil
	})
}

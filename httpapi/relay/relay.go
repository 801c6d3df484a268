package relay

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/lru"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/nethttp"
	"github.com/larder-io/larder/internal/registry"
)

// Config is the configuration of a [Relay]. Only the booleans and numbers are optional.
type Config struct {
	// Registry has the built-in resources. Its configuration has Served set, and it does not run.
	Registry *registry.Registry

	// Client sends requests with the relay's own identity, and Upstream is the URL of the upstream.
	Client   *http.Client
	Upstream *url.URL
	// Proxy passes requests through.
	Proxy *Proxy

	// Minor is the minor version of Kubernetes whose types this program has.
	Minor int64

	// CacheNewer lets caches serve built-in resources of a newer upstream in protobuf. Each connection must then lead
	// to one server of the upstream: nothing else proves the version of a response.
	CacheNewer bool

	// Follows reports whether a resource may be followed.
	Follows func(schema.GroupResource) bool
	// ConsistentFrom is the number of objects from which a list without a resourceVersion is served from a cache. The
	// cache must provably have reached the upstream's current revision; 0 means never.
	ConsistentFrom int
	// Idle is how long the relay follows a resource after its last read.
	Idle time.Duration
	// ServeStale is how long caches serve reads while the upstream does not respond.
	ServeStale time.Duration

	// MemoryLimit limits the objects of this and other relays.
	MemoryLimit *MemoryLimit

	Logger *slog.Logger
}

// ErrNoReviews is the error of an authorizer for a relay without the right to create SubjectAccessReviews. Requests
// for resources then go through.
var ErrNoReviews = errors.New("relay: the upstream does not let the relay create SubjectAccessReviews")

// Relay serves reads from caches of the resources of another API server, the upstream. It must be run.
type Relay struct {
	config   Config
	monitors apimetrics.Resources // of custom resources whose CRDs exist
	contact  contact

	hits, passed atomic.Uint64 // requests that were served from caches, and that went through

	mu       sync.Mutex
	followed map[schema.GroupVersionResource]*followed
	changed  map[schema.GroupResource]time.Time // when the CRDs have changed whose resources go through for a while
	running  context.Context                    // ends with Run; nil outside of it
	work     sync.WaitGroup
}

// New returns a Relay that follows nothing yet. It does no I/O.
func New(config Config) *Relay {
	r := &Relay{config: config, followed: make(map[schema.GroupVersionResource]*followed), changed: make(map[schema.GroupResource]time.Time)}
	r.contact.asked, r.contact.known = make(chan struct{}), lru.New(64)
	r.contact.last.Store(time.Now().UnixNano())
	config.MemoryLimit.relays = append(config.MemoryLimit.relays, r)
	return r
}

// Forward passes x through to the upstream.
func (r *Relay) Forward(x *nethttp.Call) {
	r.passed.Add(1)
	r.config.Proxy.Forward(x)
}

// Monitors counts the reads of custom resources.
func (r *Relay) Monitors() *apimetrics.Resources { return &r.monitors }

// Run follows the resources that requests name until ctx ends. It returns when everything that it started has ended.
func (r *Relay) Run(ctx context.Context) error {
	r.mu.Lock()
	r.running = ctx
	r.mu.Unlock()
	r.work.Go(func() { r.keepContact(ctx) })
	r.work.Go(func() { r.followCRDs(ctx) })
	r.unfollowIdle(ctx)
	r.mu.Lock()
	r.running = nil
	r.mu.Unlock()
	r.work.Wait()
	r.config.Proxy.CloseIdle()
	return nil
}

// unfollowIdle stops following resources that nothing has read for a while, until ctx ends.
func (r *Relay) unfollowIdle(ctx context.Context) {
	wait.UntilWithContext(ctx, func(context.Context) {
		r.mu.Lock()
		for _, f := range r.followed {
			if f.idle(r.config.Idle) {
				r.unfollowLocked(f)
			}
		}
		maps.DeleteFunc(r.changed, func(_ schema.GroupResource, at time.Time) bool { return time.Since(at) > settleTime })
		r.mu.Unlock()
		r.config.MemoryLimit.makeRoom()
	}, max(min(r.config.Idle/4, 10*time.Second), time.Millisecond))
}

// unfollow is unfollowLocked for callers that do not hold Relay.mu. It does nothing if another
// cache has replaced f.
func (r *Relay) unfollow(f *followed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.followed[f.gvr] == f {
		r.unfollowLocked(f)
	}
}

// unfollowLocked stops following a resource, and ends its watches. Requests that are reading a snapshot of it continue.
func (r *Relay) unfollowLocked(f *followed) {
	delete(r.followed, f.gvr)
	f.cancel()
}

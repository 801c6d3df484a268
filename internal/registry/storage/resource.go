package storage

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/watch"
	"github.com/larder-io/larder/watch/mirror"
)

// Resource is one stored resource: its cache, the Reflector that keeps it current and the
// Hub of its watchers.
//
// Invariant: Cache, Hub, Reflector and mirror are nil together, in a resource that is read
// from the store.
type Resource struct {
	GroupResource schema.GroupResource

	Cache     *cache.Cache
	Hub       *watch.Hub
	Reflector *cache.Reflector

	StoreLists StoreLists

	storeReader
	mirror       *mirror.Mirror // has Cache, Hub and Reflector
	linearizable bool           // Config.Linearizable
	made         time.Time
	checks       struct{ equal, different, failed atomic.Int64 }
	reads        *ReadMetrics
	issued       issued
}

// Config is the configuration of a [Resource].
type Config struct {
	// Store holds the objects, and Tail follows the store.
	Store kv.Store
	Tail  *kv.Tail

	// Prefix starts every key in the store. ResourcePrefix, which begins with a slash,
	// follows in the keys of this resource.
	Prefix, ResourcePrefix string

	// Codec is the Codec of the whole resource.
	Codec *encoding.Codec

	// Reads counts reads; nil counts nothing.
	Reads *ReadMetrics

	// Linearizable makes all reads linearizable, regardless of their resourceVersion.
	Linearizable bool
	// Cache is the configuration of the cache, which Run updates. If it is nil, the Resource is read from the store.
	Cache *CacheConfig
}

// CacheConfig is the configuration of the cache of a [Resource].
type CacheConfig struct {
	// Since is [cache.ReflectorConfig].Since.
	Since int64
	// History is [cache.LogConfig].KeepFor.
	History time.Duration

	Logger *slog.Logger
}

// New returns a Resource. It does no I/O.
func New(config Config) (*Resource, error) {
	layout, err := newLayout(config.Prefix, config.ResourcePrefix)
	if err != nil {
		return nil, err
	}
	r := &Resource{
		GroupResource: config.Codec.GroupResource,
		storeReader:   storeReader{store: config.Store, codec: config.Codec, layout: layout},
		issued:        issued{store: config.Store},
		reads:         cmp.Or(config.Reads, NewReadMetrics()),
		linearizable:  config.Linearizable,
		made:          time.Now(),
	}
	if config.Cache == nil {
		return r, nil
	}
	return r, r.addCache(config.Tail, *config.Cache)
}

func (r *Resource) addCache(tail *kv.Tail, config CacheConfig) error {
	parts := mirror.Config{
		Store:  r.store,
		Tail:   tail,
		Prefix: r.layout.root,
		Schema: r.codec.Schema,
		Decode: func(ctx context.Context, rest string, value []byte, revision int64) *cache.Object {
			return r.codec.DecodeValue(ctx, r.layout.root+rest, rest, value, revision)
		},
		// A decryption may read a value after its timeout.
		DecodeCopies: !r.codec.Encrypted,
		Since:        config.Since,
		Log:          cache.LogConfig{KeepFor: config.History},
		OnClose:      r.issued.issue,
		Logger:       config.Logger,
	}
	if r.codec.Encrypted {
		parts.Workers = encoding.DecryptWorkers
	}
	m, err := mirror.New(parts)
	if err != nil {
		return err
	}
	r.mirror, r.Cache, r.Hub, r.Reflector = m, m.Cache, m.Hub, m.Reflector
	return nil
}

// Store returns the store of the objects.
func (r *Resource) Store() kv.Store { return r.store }

// Codec returns the Codec of the whole resource.
func (r *Resource) Codec() *encoding.Codec { return r.codec }

// Run updates the cache and serves watchers until ctx ends.
func (r *Resource) Run(ctx context.Context) error {
	if r.Cache == nil {
		<-ctx.Done()
		return nil
	}
	if err := r.mirror.Run(ctx); err != nil {
		return fmt.Errorf("registry: %s: %w", r.GroupResource, err)
	}
	return nil
}

// Root returns the prefix of the resource's keys in the store. It ends in "/".
func (r *Resource) Root() string { return r.layout.root }

// Retire frees the memory of the cache after Run has ended. Later reads fail with 410.
func (r *Resource) Retire() { r.mirror.Retire() }

// Ready reports whether the cache has loaded.
func (r *Resource) Ready() bool { return r.Cache == nil || r.Cache.Ready() }

// WaitReady blocks until the cache has loaded.
func (r *Resource) WaitReady(ctx context.Context) error {
	if r.Cache == nil {
		return nil
	}
	return r.Cache.WaitReady(ctx)
}

// KeyOf returns the key of a scope without the prefix of all resources, as in upstream's spans.
func (r *Resource) KeyOf(scope Scope) string { return r.layout.resource + "/" + scope.key() }

// CheckStats counts comparisons of a cache with the store, by outcome.
type CheckStats struct {
	Equal, Different int64
	Failed           int64 // that could not be completed
}

// CheckStats returns the counters.
func (r *Resource) CheckStats() CheckStats {
	return CheckStats{r.checks.equal.Load(), r.checks.different.Load(), r.checks.failed.Load()}
}

package registry

import (
	"log/slog"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/builtin"
	"github.com/larder-io/larder/kv"
)

// Config says what a Registry is built from. Store, Tail, and of the embedded Config
// ClientConfig, Informers and Authorizer are required; other fields have kube-apiserver's
// defaults.
type Config struct {
	// Store holds the objects. Tail follows everything under Prefix in it.
	Store kv.Store
	Tail  *kv.Tail

	// Overrides are the stores of what ServersOverrides names, by their servers joined by
	// semicolons; nil keeps all in Store.
	Overrides map[string]Override

	// Fresh reports whether all reads of a resource are linearizable, whatever their
	// resourceVersion, as those are that kube-apiserver keeps no cache for; nil says so of
	// none.
	Fresh func(schema.GroupResource) bool

	// Config is what the REST storages are made with.
	builtin.Config

	// Transformers encrypt at rest; nil stores plain text.
	Transformers value.ResourceTransformers

	// CacheBytes bounds what all caches together keep beside the present objects in
	// their canonical encoding: other encodings, frames of events, and the past. 0 lets
	// encodings and frames take half as much as those objects, or 144 MiB if that is more,
	// and together with the past twice as much as the objects, or 256 MiB; and at most three
	// eighths of the memory limit of the process. Less than 0 means no bound.
	CacheBytes int64
	// CacheShares are parts of CacheBytes for single resources; a share of 0 keeps nothing.
	// Such a resource takes no more than its share, and others take nothing from it but what
	// it does not use. If CacheBytes is 0, shares are added to what that allows.
	CacheShares map[schema.GroupResource]int64

	// DeleteCollectionWorkers is how many deletions of one collection run at once;
	// 0 means 1.
	DeleteCollectionWorkers int

	// DisableGarbageCollection turns off the finalizers that the garbage collector
	// of the controller manager needs.
	DisableGarbageCollection bool

	// IndexLabels are the label keys that objects of a resource are indexed by. Others are
	// learnt from what clients ask for.
	IndexLabels map[schema.GroupResource][]string

	// History is how long events are kept at least, for watches that are resumed; less than 90
	// seconds means 90 seconds.
	History time.Duration

	// CheckInterval is how often each cache is compared with the store; 0 is never.
	CheckInterval time.Duration

	// LoadTimeout is how long after Run has begun WaitReady waits for caches that do not
	// load; 0 means 40 seconds.
	LoadTimeout time.Duration

	// Logger receives what the caches log; nil discards.
	Logger *slog.Logger
}

// Override is the store of resources that are not in that of the others.
type Override struct {
	Store kv.Store
	Tail  *kv.Tail
}

// in returns the store of what is kept in servers, which ServersOverrides may name.
func (c *Config) in(servers []string) Override {
	if o, ok := c.Overrides[strings.Join(servers, ";")]; ok {
		return o
	}
	return Override{Store: c.Store, Tail: c.Tail}
}

// tails are those of Overrides, each once.
func (c *Config) tails() []*kv.Tail {
	var all []*kv.Tail
	for _, o := range c.Overrides {
		if !slices.Contains(all, o.Tail) {
			all = append(all, o.Tail)
		}
	}
	return all
}

// fresh reports whether all reads of a resource are linearizable.
func (c *Config) fresh(gr schema.GroupResource) bool { return c.Fresh != nil && c.Fresh(gr) }

// log says how much of its past a cache keeps.
func (c *Config) log() cache.LogConfig {
	const least = 90 * time.Second // the default
	if c.History <= least {
		return cache.LogConfig{}
	}
	return cache.LogConfig{KeepFor: c.History}
}

// setDefaults fills in what kube-apiserver would, on a copy of the caller's.
func (c *Config) setDefaults() {
	c.Config.SetDefaults()
	if c.DeleteCollectionWorkers == 0 {
		c.DeleteCollectionWorkers = 1
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.LoadTimeout == 0 {
		c.LoadTimeout = 40 * time.Second
	}
}

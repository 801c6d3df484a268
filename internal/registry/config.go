package registry

import (
	"log/slog"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/larder-io/larder/internal/registry/builtin"
	"github.com/larder-io/larder/internal/registry/storage"
	"github.com/larder-io/larder/kv"
)

// Config is the configuration of a Registry. Store, Tail, and LoopbackClientConfig, Informers and Authorizer of
// the embedded Config are required; other fields have kube-apiserver's defaults.
type Config struct {
	// Store holds the objects. Tail follows all keys under Prefix in it.
	Store kv.Store
	Tail  *kv.Tail

	// Overrides are the stores of the resources in ServersOverrides, by their servers joined with
	// semicolons. If it is nil, all resources are in Store.
	Overrides map[string]Override

	// Served says that values come from another API server: see [encoding.Config]. Store and Tail are then unused:
	// [Registry.Follow] and [Registry.NewCustomResource] make the resources to read.
	Served bool

	// Linearizable reports whether all reads of a resource are linearizable, regardless of their resourceVersion, as in
	// kube-apiserver without a watch cache. nil means no resource.
	Linearizable func(schema.GroupResource) bool

	// Config is the configuration of the REST storages.
	builtin.Config

	// Transformers encrypt at rest; nil stores plain text.
	Transformers value.ResourceTransformers

	// CacheBytes limits the memory of all caches besides the canonical encodings of current objects: other encodings,
	// frames and past events. With 0, encodings and frames may take half the size of all objects, but at least 144 MiB.
	// Together with past events they may take twice the size of all objects, but at least 256 MiB. Both limits are at
	// most 3/8 of the memory limit of the process. Less than 0 means no limit.
	CacheBytes int64
	// CacheShares are parts of CacheBytes for single resources; a share of 0 keeps nothing. Such a resource uses at
	// most its share. If CacheBytes is 0, shares are added to its default.
	CacheShares map[schema.GroupResource]int64

	// DeleteCollectionWorkers is the number of concurrent deletions of one collection; 0 means 1.
	DeleteCollectionWorkers int

	// DisableGarbageCollection turns off the finalizers that the controller manager's
	// garbage collector needs.
	DisableGarbageCollection bool

	// IndexLabels are the label keys by which objects of a resource are indexed. Indexes of other
	// labels are built when selectors often need them.
	IndexLabels map[schema.GroupResource][]string

	// History is the minimum time for which events are kept, so that watches can resume. It is at least 90 seconds.
	History time.Duration

	// CheckInterval is how often each cache is compared with the store; 0 means never.
	CheckInterval time.Duration

	// LoadTimeout is the time after the first call of WaitReady at which no caller waits for caches any longer; 0 means
	// 40 seconds.
	LoadTimeout time.Duration

	// Logger logs for the caches; nil discards.
	Logger *slog.Logger
}

// Override is the store of resources that have their own etcd servers.
type Override struct {
	Store kv.Store
	Tail  *kv.Tail
}

// in returns the store at servers, which may be in ServersOverrides.
func (c *Config) in(servers []string) Override {
	if o, ok := c.Overrides[strings.Join(servers, ";")]; ok {
		return o
	}
	return Override{Store: c.Store, Tail: c.Tail}
}

// of returns the store of a resource that upstream's factory does not know: a custom resource, CRDs or APIServices.
// Like kube-apiserver, it ignores ServersOverrides for these.
func (c *Config) of(gr schema.GroupResource) Override {
	overrides, _ := genericoptions.ParseEtcdServersOverrides(c.ServersOverrides) // the factory has validated them
	for _, o := range overrides {
		if o.GroupResource == gr {
			return c.in(o.Servers)
		}
	}
	return c.in(nil)
}

// tails lists the tails of Overrides, each once.
func (c *Config) tails() []*kv.Tail {
	var all []*kv.Tail
	for _, o := range c.Overrides {
		if !slices.Contains(all, o.Tail) {
			all = append(all, o.Tail)
		}
	}
	return all
}

// cache returns the configuration of a cache that replays no events before since.
func (c *Config) cache(since int64) *storage.CacheConfig {
	return &storage.CacheConfig{Since: since, History: c.History, Logger: c.Logger}
}

// linearizable reports whether all reads of a resource are linearizable.
func (c *Config) linearizable(gr schema.GroupResource) bool {
	return c.Linearizable != nil && c.Linearizable(gr)
}

// setDefaults sets kube-apiserver's defaults.
func (c *Config) setDefaults() {
	c.Config.SetDefaults()
	if c.DeleteCollectionWorkers == 0 {
		c.DeleteCollectionWorkers = 1
	}
	c.History = max(c.History, 90*time.Second) // the default of cache.LogConfig
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.LoadTimeout == 0 {
		c.LoadTimeout = 40 * time.Second
	}
}

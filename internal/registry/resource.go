package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	clientcache "k8s.io/client-go/tools/cache"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/watch"
)

// Resource is one stored resource: its cache, what keeps it current and who
// watches it. Every served version of it is a [View].
//
// Invariant: Cache, Hub and Feed are nil together, in a resource that is read
// from the store.
type Resource struct {
	GroupResource schema.GroupResource

	Cache *cache.Cache
	Hub   *watch.Hub
	Feed  *cache.Feed

	store  kv.Store
	tail   *kv.Tail
	codec  *encoding.Codec
	layout layout
	made   time.Time
	sub    *kv.Subscription // nil without a cache
	custom bool             // of a definition: it may end while others go on
	audits auditCounters
	told   atomic.Pointer[told] // nil if the store was never asked for a list
	handed handed
}

// resourceConfig is what a Resource is made of. All but the last group is what
// upstream gives a generic.StorageDecorator.
type resourceConfig struct {
	GroupResource schema.GroupResource
	Config        *storagebackend.ConfigForResource
	Prefix        string
	KeyFunc       func(runtime.Object) (string, error)
	NewFunc       func() runtime.Object
	NewListFunc   func() runtime.Object
	GetAttrs      storage.AttrFunc
	Triggers      storage.IndexerFuncs
	Indexers      *clientcache.Indexers
	Labels        []string // to index, beside those in Indexers

	// Uncached reads from the store. Without NewFunc the records are no API objects
	// and stay as they are stored.
	Uncached bool
	// Registry says where the store is.
	Registry *Registry
	// Since is the revision before which the history is of no use.
	Since int64
	// Scheme is the built-in one if nil.
	Scheme *runtime.Scheme
	// Canonical is the kind that objects are kept as; empty means the one that
	// they are stored as.
	Canonical schema.GroupVersionKind
}

// layout says where a resource lies in the store.
//
// Invariant: root ends in "/" and starts with base.
type layout struct {
	base     string // start of every key: "/registry/"
	resource string // start of the keys of storage.Interface: "/pods"
	root     string // start of this resource's keys: "/registry/pods/"
}

// newLayout joins as apiserver pkg/storage/etcd3/store.go does.
func newLayout(prefix, resource string) (layout, error) {
	if !strings.HasPrefix(resource, "/") || resource == "/" {
		return layout{}, fmt.Errorf("registry: bad resource prefix %q", resource)
	}
	base := path.Join("/", prefix)
	if !strings.HasSuffix(base, "/") {
		base += "/"
	}
	root := base + strings.Trim(resource, "/") + "/"
	return layout{base: base, resource: resource, root: root}, nil
}

// full returns the store's key for a key of storage.Interface.
func (l layout) full(key string, recursive bool) (string, error) {
	key, err := storage.PrepareKey(l.resource, key, recursive)
	if err != nil {
		return "", err
	}
	return l.base + strings.TrimPrefix(key, "/"), nil
}

// rest returns what identifies an object, or a namespace, within the resource.
func (l layout) rest(full string) string { return strings.TrimPrefix(full, l.root) }

// splitKey is the inverse of joining namespace and name.
func splitKey(rest string) (namespace, name string) {
	i := strings.LastIndexByte(rest, '/')
	if i < 0 {
		return "", rest
	}
	return rest[:i], rest[i+1:]
}

func newResource(config resourceConfig) (*Resource, error) {
	r := &Resource{
		GroupResource: config.GroupResource,
		store:         config.Registry.config.Store,
		tail:          config.Registry.config.Tail,
		made:          time.Now(),
	}
	var err error
	if r.layout, err = newLayout(config.Registry.config.Prefix, config.Prefix); err != nil {
		return nil, err
	}
	if r.codec, err = newCodec(config); err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	if config.Uncached {
		return r, nil
	}
	return r, r.addCache(config)
}

func newCodec(config resourceConfig) (*encoding.Codec, error) {
	transformer, encrypted := bound(config.Config.Transformer)
	indexes := indexesOf(config.Triggers, config.Indexers, config.Labels)
	return encoding.New(encoding.Config{
		GroupResource:   config.GroupResource,
		Storage:         config.Config.Codec,
		EncodeVersioner: config.Config.EncodeVersioner,
		Transformer:     transformer,
		Encrypted:       encrypted,
		Schema:          cache.NewSchema(config.GroupResource.String(), config.Registry.budgets.of(config.Prefix), indexes...),
		New:             config.NewFunc,
		NewList:         config.NewListFunc,
		Attrs:           config.GetAttrs,
		Scheme:          config.Scheme,
		Canonical:       config.Canonical,
		Planner:         config.Registry.planner,
	})
}

func (r *Resource) addCache(config resourceConfig) error {
	r.sub = r.tail.Subscribe(r.layout.root)
	var err error
	r.Cache, err = cache.New(cache.Config{
		Schema: r.codec.Schema(),
		Ingest: func(ctx context.Context, rest string, value []byte, revision int64) *cache.Object {
			return r.codec.DecodeValue(ctx, r.layout.root+rest, rest, value, revision)
		},
		Source:   r.sub,
		OnAppend: func() { r.Hub.Notify() },
	})
	if err != nil {
		return err
	}
	if r.Hub, err = watch.New(watch.Config{Cache: r.Cache, Closed: r.handOut}); err != nil {
		return err
	}
	feed := cache.FeedConfig{
		Store:  r.store,
		Sub:    r.sub,
		Cache:  r.Cache,
		Prefix: r.layout.root,
		Since:  config.Since,
		Logger: config.Registry.config.Logger,
	}
	if r.codec.Encrypted() {
		feed.Workers = decryptWorkers
	}
	r.Feed, err = cache.NewFeed(feed)
	return err
}

// indexesOf turns the triggers and indexers that upstream declares into indexes.
// Upstream's indexers are named "f:" and "l:" for fields and labels (apiserver
// pkg/storage/selection_predicate.go). Namespaces are ranges of keys and need none.
func indexesOf(triggers storage.IndexerFuncs, indexers *clientcache.Indexers, labels []string) []cache.Index {
	set := make(map[cache.Index]bool)
	for field := range triggers {
		set[cache.Index{Field: field}] = true
	}
	if indexers != nil {
		for name := range *indexers {
			if field, ok := strings.CutPrefix(name, "f:"); ok {
				set[cache.Index{Field: field}] = true
			} else if label, ok := strings.CutPrefix(name, "l:"); ok {
				set[cache.Index{Label: label}] = true
			}
		}
	}
	for _, label := range labels {
		set[cache.Index{Label: label}] = true
	}
	delete(set, cache.Index{Field: "metadata.namespace"})
	delete(set, cache.Index{Field: "metadata.name"})
	return slices.SortedFunc(maps.Keys(set), func(a, b cache.Index) int {
		return strings.Compare(a.Name(), b.Name())
	})
}

// Codec turns what the store holds of the resource into what the cache holds.
func (r *Resource) Codec() *encoding.Codec { return r.codec }

// Storage returns the resource as upstream's REST storages use it.
func (r *Resource) Storage() storage.Interface { return &store{r, r.codec} }

// Run keeps the cache current and tells watchers, until ctx ends.
func (r *Resource) Run(ctx context.Context) error {
	if r.Cache == nil {
		<-ctx.Done()
		return nil
	}
	// What is loaded before the tail has its place is loaded again if it changes
	// in between, and that ends watches.
	if err := r.tail.Wait(ctx, 1); err != nil {
		return r.runError(ctx, err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.Feed.Run(ctx) })
	group.Go(func() error { return r.Hub.Run(ctx) })
	return r.runError(ctx, group.Wait())
}

// runError is err, unless Run was told to end.
func (r *Resource) runError(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return fmt.Errorf("registry: %s: %w", r.GroupResource, err)
}

// Root is what the resource's keys in the store start with; it ends in "/".
func (r *Resource) Root() string { return r.layout.root }

// Ready reports whether the cache has loaded.
func (r *Resource) Ready() bool { return r.Cache == nil || r.Cache.Ready() }

// gone is the error of all reads once the resource is kept no more, else nil.
func (r *Resource) gone() error {
	if r.Cache == nil || !r.Cache.Retired() {
		return nil
	}
	return apierrors.NewGone(fmt.Sprintf("the definition of %s has changed", r.GroupResource))
}

// WaitReady blocks until the cache has loaded.
func (r *Resource) WaitReady(ctx context.Context) error {
	if r.Cache == nil {
		return nil
	}
	return r.Cache.WaitReady(ctx)
}

// Mirrored counts the objects that were loaded from the store so far.
func (r *Resource) Mirrored() int64 {
	if r.Feed == nil {
		return 0
	}
	return r.Feed.Stats().Loaded
}

// Decodes counts the decodings of cached bytes so far. Reads of a form that was
// asked for before do not add to it.
func (r *Resource) Decodes() uint64 { return r.codec.Decodes() }

// Canonical is the kind whose encoding is the canonical one.
func (r *Resource) Canonical() schema.GroupVersionKind { return r.codec.Canonical() }

// Decodes counts the decodings of cached bytes over all resources.
func (r *Registry) Decodes() uint64 {
	var n uint64
	for _, res := range r.Resources() {
		n += res.Decodes()
	}
	return n
}

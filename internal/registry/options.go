package registry

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	clientcache "k8s.io/client-go/tools/cache"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/builtin"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/storage"
	"github.com/larder-io/larder/internal/registry/transcode"
)

// options is the generic.RESTOptionsGetter of upstream's REST storages: codec and key prefix
// come from upstream's storage factory, storage.Interface from package storage.
//
// Invariant: byPrefix holds exactly resources, each under its prefix.
type options struct {
	config    *Config
	factory   *builtin.StorageFactory
	budgets   *budgets
	planner   *transcode.Planner
	reads     *storage.ReadMetrics
	resources []*storage.Resource // in the order of their first request
	byPrefix  map[string]*storage.Resource
}

var _ generic.RESTOptionsGetter = (*options)(nil)

// newOptions returns the options of a config that has its defaults.
func newOptions(config *Config) (*options, error) {
	o := &options{config: config, planner: encoding.NewPlanner(), reads: storage.NewReadMetrics(), byPrefix: make(map[string]*storage.Resource)}
	var err error
	if o.factory, err = builtin.NewStorageFactory(&config.Config); err != nil {
		return nil, err
	}
	o.budgets, err = newBudgets(config, o.keyPrefix)
	return o, err
}

// keyPrefix returns the prefix of gr's keys. A resource that upstream does not know is a custom
// resource.
func (o *options) keyPrefix(gr schema.GroupResource) string {
	if !o.factory.HasGroup(gr.Group) {
		return customPrefix(gr)
	}
	return "/" + o.factory.ResourcePrefix(gr)
}

// customPrefix returns upstream's key prefix of a custom resource (apiserver
// pkg/server/options/etcd.go, SimpleStorageFactory).
func customPrefix(gr schema.GroupResource) string { return "/" + gr.Group + "/" + gr.Resource }

// GetRESTOptions implements generic.RESTOptionsGetter. CountMetricPollPeriod is zero, so that upstream does not start a
// goroutine per storage.
func (o *options) GetRESTOptions(gr schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	config, err := o.factory.Config(gr, example)
	if err != nil {
		return generic.RESTOptions{}, err
	}
	if t := o.config.Transformers; t != nil {
		config.Transformer = t.TransformerForResource(gr)
	}
	return o.config.restOptions(config, o.decorate, o.factory.ResourcePrefix(gr)), nil
}

// restOptions returns the options of a storage that decorate makes, whose keys begin with prefix.
func (c *Config) restOptions(of *storagebackend.ConfigForResource, decorate generic.StorageDecorator, prefix string) generic.RESTOptions {
	return generic.RESTOptions{
		StorageConfig: of, Decorator: decorate, ResourcePrefix: prefix,
		DeleteCollectionWorkers: c.DeleteCollectionWorkers, EnableGarbageCollection: !c.DisableGarbageCollection,
	}
}

// decorate is a generic.StorageDecorator. Storages over the same prefix (events of
// both groups, both versions of autoscalers) share one Resource.
func (o *options) decorate(
	config *storagebackend.ConfigForResource, prefix string, _ func(runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object,
	getAttrs apistorage.AttrFunc, triggers apistorage.IndexerFuncs, indexers *clientcache.Indexers,
) (apistorage.Interface, factory.DestroyFunc, error) {
	res, ok := o.byPrefix[prefix]
	if ok && res.GroupResource.Resource != config.GroupResource.Resource {
		return nil, nil, fmt.Errorf("%s and %s share the keys under %s", res.GroupResource, config.GroupResource, prefix)
	}
	if !ok {
		codec := encoding.Config{New: newFunc, NewList: newListFunc, Attrs: getAttrs, Planner: o.planner, Served: o.config.Served}
		codec.Scheme, codec.Canonical = o.factory.Scheme(config.GroupResource.Group)
		indexes := indexesOf(triggers, indexers, o.indexLabels(prefix))
		var err error
		if res, err = o.newResource(config, prefix, codec, o.config.cache(0), indexes...); err != nil {
			return nil, nil, err
		}
		o.byPrefix[prefix] = res
		if !o.config.Served { // Follow makes the caches
			o.resources = append(o.resources, res)
		}
	}
	return res.Storage(), func() {}, nil
}

// indexLabels returns the labels to index under prefix, for all resources with that prefix.
func (o *options) indexLabels(prefix string) (keys []string) {
	for gr, labels := range o.config.IndexLabels {
		if "/"+o.factory.ResourcePrefix(gr) == prefix {
			keys = append(keys, labels...)
		}
	}
	return keys
}

// newResource returns a Resource whose keys begin with prefix, after the common prefix. of is upstream's
// storage configuration, which names the store and completes codec.
func (o *options) newResource(of *storagebackend.ConfigForResource, prefix string, codec encoding.Config, cached *storage.CacheConfig, indexes ...cache.Index) (*storage.Resource, error) {
	codec.GroupResource, codec.Storage, codec.EncodeVersioner, codec.Transformer = of.GroupResource, of.Codec, of.EncodeVersioner, of.Transformer
	codec.Schema = storage.Identified(cache.NewResourceSchema(of.GroupResource.String(), o.budgets.of(prefix), indexes...), false)
	c, err := encoding.New(codec)
	if err != nil {
		return nil, err
	}
	config := o.config
	in := config.in(of.Transport.ServerList)
	if len(of.Transport.ServerList) == 0 {
		in = config.of(of.GroupResource)
	}
	return storage.New(storage.Config{
		Store: in.Store, Tail: in.Tail, Prefix: config.Prefix, ResourcePrefix: prefix, Codec: c,
		Reads: o.reads, Linearizable: config.linearizable(of.GroupResource), Cache: cached,
	})
}

// records is a builtin.Records.
func (o *options) records(config *storagebackend.ConfigForResource, prefix string, newFunc func() runtime.Object) (apistorage.Interface, error) {
	res, err := o.newResource(config, prefix, encoding.Config{New: newFunc, Attrs: apistorage.DefaultClusterScopedAttr}, nil)
	if err != nil {
		return nil, err
	}
	return res.Storage(), nil
}

// resource returns the Resource that gr is stored in, nil if it is not stored.
func (o *options) resource(gr schema.GroupResource) *storage.Resource {
	return o.byPrefix["/"+o.factory.ResourcePrefix(gr)]
}

// indexesOf turns the triggers and indexers that upstream declares into indexes.
// Upstream's indexers are named "f:" and "l:" for fields and labels (apiserver
// pkg/storage/selection_predicate.go). Namespaces are ranges of keys and need none.
func indexesOf(triggers apistorage.IndexerFuncs, indexers *clientcache.Indexers, labels []string) []cache.Index {
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

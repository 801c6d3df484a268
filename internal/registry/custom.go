package registry

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/unstructuredscheme"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/recognizer"
	"k8s.io/apiserver/pkg/registry/generic"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	clientcache "k8s.io/client-go/tools/cache"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/storage"
	"github.com/larder-io/larder/internal/registry/table"
)

// CustomResource is the resource of one state of a CRD. All versions are served from one cache.
//
// The cache holds the JSON of each object in its stored version, as upstream reads it:
// pruned, defaulted and repaired by that state of the CRD. Other versions are converted from it when they
// are first requested. If a conversion fails, the request fails, and the next request retries it.
//
// A CustomResource is a generic.RESTOptionsGetter: for the first object that is not in served form,
// CustomResourceConfig.Make builds upstream's storages of all versions over it. After Run all reads fail with 410, so
// that a late request does not get an empty resource.
type CustomResource struct {
	*storage.Resource

	registry *Registry
	codec    *encoding.Custom
}

// CustomResourceConfig is the configuration of a [CustomResource]. The Registry sets its Transformer and Schema.
type CustomResourceConfig struct {
	encoding.CustomConfig

	// Revision is the revision of the CRD. Events before it belong to another state and are not replayed.
	Revision int64

	// Kinds are the kinds of the versions that are served or stored.
	Kinds []CustomKind

	// In is the store of the objects, if it is not the one in the Registry's configuration.
	In Override
}

// CustomKind is the kind of a version, and the kind of its lists.
type CustomKind struct {
	schema.GroupVersionKind
	ListKind string
}

var _ generic.RESTOptionsGetter = (*CustomResource)(nil)

// NewCustomResource returns a CustomResource. It does no I/O. The caller calls Run or Retire.
func (r *Registry) NewCustomResource(config CustomResourceConfig) (*CustomResource, error) {
	if t := r.config.Transformers; t != nil {
		config.Transformer = t.TransformerForResource(config.GroupResource)
	}
	prefix := customPrefix(config.GroupResource)
	config.Schema = storage.Identified(cache.NewResourceSchema(config.GroupResource.String(), r.options.budgets.of(prefix)), true)
	c := &CustomResource{registry: r, codec: encoding.NewCustom(config.CustomConfig)}
	for _, kind := range config.Kinds {
		if err := c.codec.Declare(kind.GroupVersionKind, kind.ListKind); err != nil {
			return nil, err
		}
	}
	var err error
	in, since := config.In, int64(0)
	if in.Store == nil {
		in = r.config.of(config.GroupResource)
		since = r.since(in, config.Revision)
	}
	c.Resource, err = storage.New(storage.Config{
		Store: in.Store, Tail: in.Tail, Prefix: r.config.Prefix, ResourcePrefix: prefix, Codec: c.codec.Codec,
		Reads: r.options.reads, Linearizable: r.config.linearizable(config.GroupResource), Cache: r.config.cache(since),
	})
	return c, err
}

// since returns the first revision of a custom resource's store that may be replayed: the CRD's revision. If CRDs are
// in another store, revisions cannot be compared. Then it is the current revision, or 0 if the CRD has not changed
// since this process began.
func (r *Registry) since(in Override, revision int64) int64 {
	crds := r.config.of(apiextensions.Resource("customresourcedefinitions"))
	switch {
	case in.Tail == crds.Tail:
		return revision
	case revision <= crds.Tail.State().Began:
		return 0
	default:
		return in.Tail.State().Seen
	}
}

// GetRESTOptions implements generic.RESTOptionsGetter. Upstream wraps the codec in its coercion and
// conversion (apiextensions-apiserver pkg/cmd/server/options/options.go).
func (c *CustomResource) GetRESTOptions(gr schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	config := storagebackend.NewDefaultConfig(c.registry.config.Prefix, nil)
	binary := cbor.NewSerializer(unstructuredscheme.NewUnstructuredCreator(), unstructuredscheme.NewUnstructuredObjectTyper())
	config.Codec = runtime.NewCodec(unstructured.UnstructuredJSONScheme,
		recognizer.NewDecoder(binary, unstructured.UnstructuredJSONScheme))
	return c.registry.config.restOptions(config.ForResource(gr), c.decorate, customPrefix(c.GroupResource)[1:]), nil
}

// decorate is a generic.StorageDecorator: it adds the version of a storage.
func (c *CustomResource) decorate(
	config *storagebackend.ConfigForResource, prefix string, _ func(runtime.Object) (string, error), newFunc, _ func() runtime.Object,
	getAttrs apistorage.AttrFunc, _ apistorage.IndexerFuncs, _ *clientcache.Indexers,
) (apistorage.Interface, factory.DestroyFunc, error) {
	gvk := newFunc().GetObjectKind().GroupVersionKind()
	if prefix != customPrefix(c.GroupResource) {
		return nil, nil, fmt.Errorf("registry: unexpected storage of %s under %s", gvk, prefix)
	}
	codec, err := c.codec.Add(gvk, config.Codec, getAttrs)
	if err != nil {
		return nil, nil, err
	}
	return c.StorageOf(codec), func() {}, nil
}

// View returns the view of a version that is served or stored.
func (c *CustomResource) View(gvk schema.GroupVersionKind, listKind string, columns *table.Columns) (*View, error) {
	codec := c.codec.Version(gvk.Version)
	if codec == nil {
		return nil, fmt.Errorf("registry: %s is neither served nor stored", gvk)
	}
	version, err := codec.NewVersion(gvk, listKind)
	if err != nil {
		return nil, err
	}
	return &View{Resource: c.Resource, Version: version, Printer: table.NewCustom(version, columns)}, nil
}

// Run updates the cache until ctx ends, and then frees its memory. From then on reads fail with 410.
func (c *CustomResource) Run(ctx context.Context) error {
	defer c.Retire()
	end := c.registry.customs.begin(c.Resource)
	defer end()
	return c.Resource.Run(ctx)
}

// customs is the set of resources of CRDs that have a cache. Two states of one CRD may have caches at the same time.
type customs struct {
	mu     sync.Mutex
	list   []*storage.Resource // in the order of begin
	byName map[schema.GroupResource][]*storage.Resource
}

// begin adds r until end is called.
func (c *customs) begin(r *storage.Resource) (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byName == nil {
		c.byName = make(map[schema.GroupResource][]*storage.Resource)
	}
	gr := r.GroupResource
	c.list, c.byName[gr] = append(c.list, r), append(c.byName[gr], r)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		isR := func(other *storage.Resource) bool { return other == r }
		c.list, c.byName[gr] = slices.DeleteFunc(c.list, isR), slices.DeleteFunc(c.byName[gr], isR)
		if len(c.byName[gr]) == 0 {
			delete(c.byName, gr)
		}
	}
}

// all lists the resources. Their order does not change, except by additions at the end and removals.
func (c *customs) all() []*storage.Resource {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.list)
}

// newest returns the newest state of a resource, nil if there is none.
func (c *customs) newest(gr schema.GroupResource) *storage.Resource {
	c.mu.Lock()
	defer c.mu.Unlock()
	states := c.byName[gr]
	if len(states) == 0 {
		return nil
	}
	return states[len(states)-1]
}

// allNewest lists the newest states of all resources.
func (c *customs) allNewest() []*storage.Resource {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]*storage.Resource, 0, len(c.byName))
	for _, states := range c.byName {
		list = append(list, states[len(states)-1])
	}
	return list
}

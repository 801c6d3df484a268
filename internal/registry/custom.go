package registry

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/unstructuredscheme"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/recognizer"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value"
	clientcache "k8s.io/client-go/tools/cache"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/transcode"
	"github.com/larder-io/larder/internal/registry/wire"
)

// Custom is the resource behind one state of a definition of custom resources: one
// cache, which all versions are served from.
//
// What is in the cache is the JSON of each object as reading it from the store gives
// it, in the version that it was stored in: pruned, defaulted and repaired as that
// state of the definition says. Another version is made of it when it is first asked
// for. A conversion that fails fails who asked for it, and is tried again for the next.
//
// It is a generic.RESTOptionsGetter: upstream's storages of all versions are built over
// it, then the views are taken and Run is called. After Run it answers 410: whoever still
// holds it must not take what it does not know for what is not there.
type Custom struct {
	*Resource

	registry *Registry
	config   CustomConfig
	versions map[string]*version
}

// CustomConfig says what a Custom is.
type CustomConfig struct {
	GroupResource schema.GroupResource

	// Versions counts those of the definition, served or not.
	Versions int

	// Revision is that of the definition: what was stored before it is no part of the
	// history, because the definition was another one.
	Revision int64

	// Webhook says that versions differ by more than their apiVersion, and how is
	// known elsewhere.
	Webhook bool
}

// version is one version of a Custom.
type version struct {
	codec *codec // decodes stored or cached bytes of any version into objects of this one

	head     []byte // of the canonical bytes of an object that is stored in this version
	alone    bool   // there is no other version
	converts bool   // metadata may change where the version does
}

var _ generic.RESTOptionsGetter = (*Custom)(nil)

// NewCustom returns a Custom that has no versions yet. It does no I/O.
func (r *Registry) NewCustom(config CustomConfig) (*Custom, error) {
	c := &Custom{registry: r, config: config, versions: make(map[string]*version)}
	c.Resource = &Resource{
		GroupResource: config.GroupResource,
		store:         r.config.Store,
		tail:          r.config.Tail,
		made:          time.Now(),
		custom:        true,
		codec: &codec{
			versioner:   storage.APIObjectVersioner{},
			untyped:     true,
			newFunc:     func() runtime.Object { return &unstructured.Unstructured{} },
			newListFunc: func() runtime.Object { return &unstructured.UnstructuredList{} },
			attrs:       c.attrs,
		},
	}
	var transformer value.Transformer
	if t := r.config.Transformers; t != nil {
		transformer = t.TransformerForResource(config.GroupResource)
	}
	c.codec.transformer, c.codec.encrypted = bound(transformer)
	var err error
	if c.layout, err = newLayout(r.config.Prefix, c.prefix()); err != nil {
		return nil, err
	}
	c.schema = cache.NewSchema(c.GroupResource.String(), r.budgets.of(c.prefix()))
	return c, nil
}

// prefix is where upstream keeps custom resources (apiserver
// pkg/server/options/etcd.go, SimpleStorageFactory).
func (c *Custom) prefix() string { return customPrefix(c.GroupResource) }

func customPrefix(gr schema.GroupResource) string { return "/" + gr.Group + "/" + gr.Resource }

// GetRESTOptions implements generic.RESTOptionsGetter. The codec is what upstream puts
// its coercion and conversion around (apiextensions-apiserver
// pkg/cmd/server/options/options.go).
func (c *Custom) GetRESTOptions(gr schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	config := storagebackend.NewDefaultConfig(c.registry.config.Prefix, nil)
	binary := cbor.NewSerializer(unstructuredscheme.NewUnstructuredCreator(), unstructuredscheme.NewUnstructuredObjectTyper())
	config.Codec = runtime.NewCodec(unstructured.UnstructuredJSONScheme,
		recognizer.NewDecoder(binary, unstructured.UnstructuredJSONScheme))
	return generic.RESTOptions{
		StorageConfig:           config.ForResource(gr),
		Decorator:               c.decorate,
		DeleteCollectionWorkers: c.registry.config.DeleteCollectionWorkers,
		EnableGarbageCollection: !c.registry.config.DisableGarbageCollection,
		ResourcePrefix:          c.prefix()[1:],
	}, nil
}

// decorate is a generic.StorageDecorator: it adds the version that a storage is for.
func (c *Custom) decorate(
	config *storagebackend.ConfigForResource,
	prefix string,
	_ func(runtime.Object) (string, error),
	newFunc, newListFunc func() runtime.Object,
	getAttrs storage.AttrFunc,
	_ storage.IndexerFuncs,
	_ *clientcache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	gvk := newFunc().GetObjectKind().GroupVersionKind()
	if prefix != c.prefix() || c.versions[gvk.Version] != nil || c.Cache != nil {
		return nil, nil, fmt.Errorf("registry: storage of %s under %s does not belong here", gvk, prefix)
	}
	v := &version{codec: &codec{
		storage:     config.Codec,
		versioner:   c.codec.versioner,
		transformer: c.codec.transformer,
		untyped:     true,
		newFunc:     newFunc,
		newListFunc: newListFunc,
		attrs:       getAttrs,
	}}
	head, err := marshalJSON(gvk.GroupVersion().String())
	if err != nil {
		return nil, nil, err
	}
	v.head = append(append([]byte(`{"apiVersion":`), head...), ',')
	v.codec.head = v.head
	v.converts = c.config.Webhook
	v.codec.converts = c.config.Webhook
	c.versions[gvk.Version] = v
	// Any version's codec decodes a value in the version that it has, if it is not told
	// which is wanted.
	c.codec.storage = config.Codec
	return &store{c.Resource, v.codec}, func() {}, nil
}

// attrs are the labels of obj and all fields by which some version selects. The
// versions' paths are looked up in the object as it is stored.
func (c *Custom) attrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	var all labels.Set
	selectable := make(fields.Set)
	for _, v := range c.versions {
		set, found, err := v.codec.attrs(obj)
		if err != nil {
			return nil, nil, err
		}
		for name, value := range found {
			selectable[name] = value
		}
		all = set
	}
	return all, selectable, nil
}

// Finish builds the cache, after the storages of all versions were.
func (c *Custom) Finish() error {
	if len(c.versions) == 0 {
		return errors.New("registry: " + c.GroupResource.String() + " has no versions")
	}
	for _, v := range c.versions {
		if v.alone = c.config.Versions == 1; v.alone {
			c.codec.newFunc = v.codec.newFunc // all others are refused when they are taken in
		}
		// Upstream's look for fields keeps state, and values are taken in side by side.
		v.codec.attrs = exclusive(v.codec.attrs)
	}
	return c.addCache(resourceConfig{Registry: c.registry, Since: c.config.Revision})
}

func exclusive(attrs storage.AttrFunc) storage.AttrFunc {
	var mu sync.Mutex
	return func(obj runtime.Object) (labels.Set, fields.Set, error) {
		mu.Lock()
		defer mu.Unlock()
		return attrs(obj)
	}
}

// View returns one version, which a storage was built for.
func (c *Custom) View(gvk schema.GroupVersionKind, listKind string, columns *Columns) (*View, error) {
	custom := c.versions[gvk.Version]
	if custom == nil {
		return nil, fmt.Errorf("registry: %s has no storage", gvk)
	}
	const forms = mediaTypes*shapes + 1 // the last is rows
	base := firstViewForm + c.views*forms
	if base+forms > maxForms {
		return nil, fmt.Errorf("registry: %s is served in too many versions", c.GroupResource)
	}
	c.views++
	v := &View{Resource: c.Resource, GVK: gvk, ListKind: listKind, custom: custom, columns: columns, table: columns.Table}
	v.rowID = FormID(base + mediaTypes*shapes)
	v.times = sync.OnceValue(func() *timeFinder { return newTimeFinder(custom.codec.newListFunc()) })
	for media := range MediaType(mediaTypes) {
		for shape := range Shape(shapes) {
			f := v.newForm(media, shape, base)
			f.plan = func() *transcode.Plan { return nil }
			f.id = FormID(base + int(media)*shapes + int(shape))
			if shape == Full {
				f.Writer = wire.Unstructured(wire.Kind{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind, ListKind: listKind})
			}
			v.forms[media][shape] = f
		}
	}
	return v, nil
}

// Run keeps the cache current until ctx ends, and gives back what it took. From then on
// reads are told that the resource is gone.
func (c *Custom) Run(ctx context.Context) error {
	defer c.sub.Close()
	end := c.registry.customs.begin(c.Resource)
	err := c.Resource.Run(ctx)
	end()
	c.Cache.Retire()
	return err
}

// stored reports whether body, canonical bytes, is of the version. It may say no of
// one that is, which is then converted to itself.
func (v *version) stored(body []byte) bool {
	return len(body) > len(v.head) && string(body[:len(v.head)]) == string(v.head)
}

// is reports whether the item of o in a shape is its canonical bytes, which it is of no
// kind that has a Go type.
func (v *version) is(shape Shape, o *cache.Object) bool {
	return v != nil && shape == Full && o.Err() == nil && v.stored(o.Body())
}

// encode makes the item of o in form f, which is one of the version's.
func (v *version) encode(f *Form, o *cache.Object) ([]byte, error) {
	if f.shape == Full {
		if f.media != JSON {
			return nil, fmt.Errorf("%w: %s", errNotProtobuf, f.view.GVK)
		}
		obj, err := v.codec.internal(o, 0)
		if err != nil {
			return nil, err
		}
		return v.codec.encode(obj)
	}
	if v.converts && !v.stored(o.Body()) {
		obj, err := v.codec.internal(o, 0)
		if err != nil {
			return nil, err
		}
		return f.partialOf(obj)
	}
	raw, err := wire.MetadataJSON(o.Body())
	if err != nil {
		return nil, err
	}
	v.codec.decodes.Add(1)
	var metadata map[string]any
	if err := utiljson.Unmarshal(raw, &metadata); err != nil {
		return nil, fmt.Errorf("registry: decode metadata: %w", err)
	}
	return f.partialOf(&unstructured.Unstructured{Object: map[string]any{"metadata": metadata}})
}

// Converts reports whether making an item may take a webhook.
func (v *View) Converts() bool { return v.custom != nil && v.custom.converts && !v.custom.alone }

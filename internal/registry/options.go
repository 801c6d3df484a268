package registry

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/kubeapiserver"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
)

const (
	defaultPrefix    = kubeoptions.DefaultEtcdPathPrefix
	defaultMediaType = runtime.ContentTypeProtobuf
)

// options answers what upstream's REST storages ask when they are built: codec
// and key prefix come from upstream's storage factory, storage.Interface is ours.
//
// Invariant: byPrefix holds exactly resources, each under its prefix.
type options struct {
	registry  *Registry
	factory   *serverstorage.DefaultStorageFactory
	resources []*Resource // in the order in which they were first asked for
	byPrefix  map[string]*Resource
}

var _ generic.RESTOptionsGetter = (*options)(nil)

func newOptions(r *Registry) (*options, error) {
	backend := storagebackend.NewDefaultConfig(r.config.Prefix, nil)
	etcd := genericoptions.NewEtcdOptions(backend)
	etcd.DefaultStorageMediaType = r.config.StorageMediaType
	config := kubeapiserver.NewStorageFactoryConfig()
	config.APIResourceConfig = r.config.APIResources
	storages, err := config.Complete(etcd).New()
	if err != nil {
		return nil, err
	}
	return &options{registry: r, factory: storages, byPrefix: make(map[string]*Resource)}, nil
}

// GetRESTOptions implements generic.RESTOptionsGetter. CountMetricPollPeriod stays
// zero: with it upstream would start a goroutine per storage.
func (o *options) GetRESTOptions(gr schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	config, err := o.storageConfig(gr, example)
	if err != nil {
		return generic.RESTOptions{}, err
	}
	return generic.RESTOptions{
		StorageConfig:           config,
		Decorator:               o.decorate,
		DeleteCollectionWorkers: o.registry.config.DeleteCollectionWorkers,
		EnableGarbageCollection: !o.registry.config.DisableGarbageCollection,
		ResourcePrefix:          o.resourcePrefix(gr),
	}, nil
}

// resourcePrefix is what the keys of gr begin with, after the prefix of all. The
// groups of servers that upstream delegates to are named in their keys.
func (o *options) resourcePrefix(gr schema.GroupResource) string {
	if gr.Group == apiextensions.GroupName || gr.Group == apiregistration.GroupName {
		return gr.Group + "/" + gr.Resource
	}
	return o.factory.ResourcePrefix(gr)
}

// storageConfig says how gr is encoded, in which version, and how encrypted.
func (o *options) storageConfig(gr schema.GroupResource, example runtime.Object) (*storagebackend.ConfigForResource, error) {
	var config *storagebackend.ConfigForResource
	switch gr.Group {
	case apiextensions.GroupName:
		config = o.definitionsConfig(gr)
	case apiregistration.GroupName:
		config = o.apiServicesConfig(gr)
	default:
		var err error
		if config, err = o.factory.NewConfig(gr, example); err != nil {
			return nil, fmt.Errorf("storage of %s: %w", gr, err)
		}
	}
	if t := o.registry.config.Transformers; t != nil {
		config.Transformer = t.TransformerForResource(gr)
	}
	return config, nil
}

// decorate is a generic.StorageDecorator. Storages over the same prefix (events of
// both groups, both versions of autoscalers) share one Resource.
func (o *options) decorate(
	config *storagebackend.ConfigForResource,
	prefix string,
	keyFunc func(runtime.Object) (string, error),
	newFunc, newListFunc func() runtime.Object,
	getAttrs storage.AttrFunc,
	triggers storage.IndexerFuncs,
	indexers *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	res, ok := o.byPrefix[prefix]
	if ok && res.GroupResource.Resource != config.GroupResource.Resource {
		return nil, nil, fmt.Errorf("%s and %s share the keys under %s", res.GroupResource, config.GroupResource, prefix)
	}
	if !ok {
		of := resourceConfig{
			GroupResource: config.GroupResource,
			Config:        config,
			Prefix:        prefix,
			KeyFunc:       keyFunc,
			NewFunc:       newFunc,
			NewListFunc:   newListFunc,
			GetAttrs:      getAttrs,
			Triggers:      triggers,
			Indexers:      indexers,
			Labels:        o.indexLabels(prefix),
			Registry:      o.registry,
		}
		switch config.GroupResource.Group {
		case apiextensions.GroupName:
			of.Scheme, of.Canonical = apiextensionsserver.Scheme, definitionKind()
		case apiregistration.GroupName:
			of.Scheme, of.Canonical = aggregatorscheme.Scheme, apiServiceKind()
		}
		var err error
		if res, err = newResource(of); err != nil {
			return nil, nil, err
		}
		o.byPrefix[prefix] = res
		o.resources = append(o.resources, res)
	}
	return res.Storage(), func() {}, nil
}

// indexLabels are the labels to index under prefix, whichever of its resources they
// were configured for.
func (o *options) indexLabels(prefix string) (keys []string) {
	for gr, labels := range o.registry.config.IndexLabels {
		if "/"+o.resourcePrefix(gr) == prefix {
			keys = append(keys, labels...)
		}
	}
	return keys
}

// plain builds a storage.Interface without a cache under prefix, for records that
// are no API objects of their own. They are encoded like as, and never encrypted,
// since upstream makes their storage from the factory alone.
func (o *options) plain(gr, as schema.GroupResource, example runtime.Object, prefix string) (storage.Interface, error) {
	config, err := o.factory.NewConfig(as, example)
	if err != nil {
		return nil, err
	}
	config = config.ForResource(gr)
	res, err := newResource(resourceConfig{
		GroupResource: gr,
		Config:        config,
		Prefix:        prefix,
		Uncached:      true,
		Registry:      o.registry,
	})
	if err != nil {
		return nil, err
	}
	return res.Storage(), nil
}

// resource returns the Resource that gr is stored in, nil if it is not stored.
func (o *options) resource(gr schema.GroupResource) *Resource {
	return o.byPrefix["/"+o.resourcePrefix(gr)]
}

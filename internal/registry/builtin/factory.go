package builtin

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationv1beta1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1beta1"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/kubeapiserver"
)

// Records makes a storage.Interface without a cache for the records under prefix. Records are stored objects that the
// API does not serve. newFunc makes an empty one.
type Records func(config *storagebackend.ConfigForResource, prefix string, newFunc func() runtime.Object) (storage.Interface, error)

// recordTimeout limits a request for records, because upstream's interfaces of records pass no context, and etcd's
// client waits without limit.
const recordTimeout = 10 * time.Second

// recordContext returns the context of a request for records.
func recordContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), recordTimeout)
}

// StorageFactory has the keys, storage version and encoding of each resource. It is upstream's factory plus the
// groups of CRDs and APIServices, which have separate factories upstream.
type StorageFactory struct {
	prefix  string
	factory *serverstorage.DefaultStorageFactory
}

// NewStorageFactory returns the factory for a config that has its defaults.
func NewStorageFactory(config *Config) (*StorageFactory, error) {
	etcd := genericoptions.NewEtcdOptions(storagebackend.NewDefaultConfig(config.Prefix, nil))
	etcd.DefaultStorageMediaType = config.StorageMediaType
	etcd.EtcdServersOverrides = config.ServersOverrides
	storages := kubeapiserver.NewStorageFactoryConfig()
	storages.APIResourceConfig = config.APIResources
	factory, err := storages.Complete(etcd).New()
	if err != nil {
		return nil, err
	}
	return &StorageFactory{prefix: config.Prefix, factory: factory}, nil
}

// Servers lists the servers of the store, if they are named, and the servers of each resource with its own.
func (f *StorageFactory) Servers() [][]string {
	var all [][]string
	for _, config := range f.factory.Configs() {
		all = append(all, config.Transport.ServerList)
	}
	return all
}

// HasGroup reports whether the resources of a group are upstream's own.
func (f *StorageFactory) HasGroup(group string) bool {
	return group == apiextensions.GroupName || legacyscheme.Scheme.IsGroupRegistered(group)
}

// ResourcePrefix returns the prefix of the keys of gr, after the common prefix. Keys of CRDs and
// APIServices contain the name of their group.
func (f *StorageFactory) ResourcePrefix(gr schema.GroupResource) string {
	if gr.Group == apiextensions.GroupName || gr.Group == apiregistration.GroupName {
		return gr.Group + "/" + gr.Resource
	}
	return f.factory.ResourcePrefix(gr)
}

// Config returns the encoding and the version in which gr is stored.
func (f *StorageFactory) Config(gr schema.GroupResource, example runtime.Object) (*storagebackend.ConfigForResource, error) {
	switch gr.Group {
	case apiextensions.GroupName:
		// JSON in the older version, which is not served (kubernetes pkg/controlplane/apiserver/apiextensions.go).
		return f.inJSON(gr, apiextensionsserver.Codecs, apiextensionsv1beta1.SchemeGroupVersion, apiextensionsv1.SchemeGroupVersion), nil
	case apiregistration.GroupName:
		// JSON (kubernetes pkg/controlplane/apiserver/aggregator.go).
		return f.inJSON(gr, aggregatorscheme.Codecs, apiregistrationv1.SchemeGroupVersion, apiregistrationv1beta1.SchemeGroupVersion), nil
	}
	config, err := f.factory.NewConfig(gr, example)
	if err != nil {
		return nil, fmt.Errorf("storage of %s: %w", gr, err)
	}
	return config, nil
}

// RecordConfig returns the encoding of records, which is the encoding of another resource. Records are never
// encrypted, as in upstream.
func (f *StorageFactory) RecordConfig(gr, as schema.GroupResource, example runtime.Object) (*storagebackend.ConfigForResource, error) {
	config, err := f.factory.NewConfig(as, example)
	if err != nil {
		return nil, err
	}
	return config.ForResource(gr), nil
}

// Scheme returns the scheme in which a group's kinds are registered, and the kind of its canonical
// encoding if objects are stored in another version. Both are zero except for the groups of CRDs and
// APIServices.
func (f *StorageFactory) Scheme(group string) (*runtime.Scheme, schema.GroupVersionKind) {
	switch group {
	case apiextensions.GroupName:
		return apiextensionsserver.Scheme, apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition")
	case apiregistration.GroupName:
		return aggregatorscheme.Scheme, apiregistrationv1.SchemeGroupVersion.WithKind("APIService")
	}
	return nil, schema.GroupVersionKind{}
}

// inJSON returns the configuration of a group that has its own scheme. Its objects are stored in JSON,
// in the version stored.
func (f *StorageFactory) inJSON(gr schema.GroupResource, codecs serializer.CodecFactory, stored, other schema.GroupVersion) *storagebackend.ConfigForResource {
	config := storagebackend.NewDefaultConfig(f.prefix, nil)
	config.Codec = codecs.LegacyCodec(stored, other)
	config.EncodeVersioner = runtime.NewMultiGroupVersioner(stored, schema.GroupKind{Group: stored.Group})
	return config.ForResource(gr)
}

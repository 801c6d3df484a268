package builtin

import (
	"fmt"

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

// Records makes a storage.Interface without a cache for the records under prefix, which
// are no API objects of their own.
type Records func(config *storagebackend.ConfigForResource, prefix string) (storage.Interface, error)

// StorageFactory says how each resource is stored: under which keys, in which version
// and in which encoding. It is upstream's, and knows the groups of the servers that
// kube-apiserver delegates to as well.
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

// Servers lists the servers of the store, if they are named, and those of each resource that is kept
// elsewhere.
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

// ResourcePrefix is what the keys of gr begin with, after the prefix of all. The
// groups of servers that upstream delegates to are named in their keys.
func (f *StorageFactory) ResourcePrefix(gr schema.GroupResource) string {
	if gr.Group == apiextensions.GroupName || gr.Group == apiregistration.GroupName {
		return gr.Group + "/" + gr.Resource
	}
	return f.factory.ResourcePrefix(gr)
}

// Config says how gr is encoded, and in which version.
func (f *StorageFactory) Config(gr schema.GroupResource, example runtime.Object) (*storagebackend.ConfigForResource, error) {
	switch gr.Group {
	case apiextensions.GroupName:
		return f.crdConfig(gr), nil
	case apiregistration.GroupName:
		return f.apiServiceConfig(gr), nil
	}
	config, err := f.factory.NewConfig(gr, example)
	if err != nil {
		return nil, fmt.Errorf("storage of %s: %w", gr, err)
	}
	return config, nil
}

// RecordConfig says how records are encoded that are no API objects of their own: as the
// objects of another resource are. They are never encrypted, since upstream makes their
// storage from the factory alone.
func (f *StorageFactory) RecordConfig(gr, as schema.GroupResource, example runtime.Object) (*storagebackend.ConfigForResource, error) {
	config, err := f.factory.NewConfig(as, example)
	if err != nil {
		return nil, err
	}
	return config.ForResource(gr), nil
}

// Scheme returns the scheme that a group's kinds are registered in, and the kind of its
// objects' canonical encoding if they are stored in another version. Both are zero for all
// groups but those of the servers that upstream delegates to.
func (f *StorageFactory) Scheme(group string) (*runtime.Scheme, schema.GroupVersionKind) {
	switch group {
	case apiextensions.GroupName:
		return apiextensionsserver.Scheme, crdKind()
	case apiregistration.GroupName:
		return aggregatorscheme.Scheme, apiServiceKind()
	}
	return nil, schema.GroupVersionKind{}
}

// inJSON returns the configuration of a group that has a scheme of its own: its objects are
// stored in JSON, in the version stored.
func (f *StorageFactory) inJSON(gr schema.GroupResource, codecs serializer.CodecFactory, stored, other schema.GroupVersion) *storagebackend.ConfigForResource {
	config := storagebackend.NewDefaultConfig(f.prefix, nil)
	config.Codec = codecs.LegacyCodec(stored, other)
	config.EncodeVersioner = runtime.NewMultiGroupVersioner(stored, schema.GroupKind{Group: stored.Group})
	return config.ForResource(gr)
}

// crdKind is the kind of CRDs' canonical encoding. They are stored as v1beta1, which is not
// served.
func crdKind() schema.GroupVersionKind {
	return apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition")
}

// crdConfig says how CRDs are stored: in JSON, in the older version,
// which is the shorter (kubernetes pkg/controlplane/apiserver/apiextensions.go).
func (f *StorageFactory) crdConfig(gr schema.GroupResource) *storagebackend.ConfigForResource {
	return f.inJSON(gr, apiextensionsserver.Codecs, apiextensionsv1beta1.SchemeGroupVersion, apiextensionsv1.SchemeGroupVersion)
}

// apiServiceKind is the kind of APIServices' canonical encoding.
func apiServiceKind() schema.GroupVersionKind {
	return apiregistrationv1.SchemeGroupVersion.WithKind("APIService")
}

// apiServiceConfig says how APIServices are stored: in JSON (kubernetes
// pkg/controlplane/apiserver/aggregator.go).
func (f *StorageFactory) apiServiceConfig(gr schema.GroupResource) *storagebackend.ConfigForResource {
	return f.inJSON(gr, aggregatorscheme.Codecs, apiregistrationv1.SchemeGroupVersion, apiregistrationv1beta1.SchemeGroupVersion)
}

package registry

import (
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
)

// definitionsProvider makes the group of definitions of custom resources, as
// apiextensions-apiserver pkg/apiserver/apiserver.go does.
type definitionsProvider struct{}

// GroupName implements provider.
func (definitionsProvider) GroupName() string { return apiextensions.GroupName }

// NewRESTStorage implements provider. The group is always served.
func (definitionsProvider) NewRESTStorage(_ serverstorage.APIResourceConfigSource, getter generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info := genericapiserver.NewDefaultAPIGroupInfo(apiextensions.GroupName, apiextensionsserver.Scheme,
		metav1.ParameterCodec, apiextensionsserver.Codecs)
	definitions, err := customresourcedefinition.NewREST(apiextensionsserver.Scheme, getter)
	if err != nil {
		return info, err
	}
	info.VersionedResourcesStorageMap[apiextensionsv1.SchemeGroupVersion.Version] = map[string]rest.Storage{
		"customresourcedefinitions":        definitions,
		"customresourcedefinitions/status": customresourcedefinition.NewStatusREST(apiextensionsserver.Scheme, definitions),
	}
	return info, nil
}

// definitionKind is what definitions are kept as. They are stored as v1beta1, which
// is not served.
func definitionKind() schema.GroupVersionKind {
	return apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition")
}

// definitionsConfig says how definitions are stored: in JSON, in the older version,
// which is the shorter (kubernetes pkg/controlplane/apiserver/apiextensions.go).
func (o *options) definitionsConfig(gr schema.GroupResource) *storagebackend.ConfigForResource {
	return o.inJSON(gr, apiextensionsserver.Codecs, apiextensionsv1beta1.SchemeGroupVersion, apiextensionsv1.SchemeGroupVersion)
}

// inJSON stores what has a scheme of its own in JSON, in the first of its versions.
func (o *options) inJSON(gr schema.GroupResource, codecs serializer.CodecFactory, stored, other schema.GroupVersion) *storagebackend.ConfigForResource {
	config := storagebackend.NewDefaultConfig(o.registry.config.Prefix, nil)
	config.Codec = codecs.LegacyCodec(stored, other)
	config.EncodeVersioner = runtime.NewMultiGroupVersioner(stored, schema.GroupKind{Group: stored.Group})
	return config.ForResource(gr)
}

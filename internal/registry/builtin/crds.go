package builtin

import (
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
)

// crdProvider makes the group of CRDs, as
// apiextensions-apiserver pkg/apiserver/apiserver.go does.
type crdProvider struct{}

// GroupName implements provider.
func (crdProvider) GroupName() string { return apiextensions.GroupName }

// NewRESTStorage implements provider.
func (crdProvider) NewRESTStorage(enabled serverstorage.APIResourceConfigSource, getter generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info := genericapiserver.NewDefaultAPIGroupInfo(apiextensions.GroupName, apiextensionsserver.Scheme,
		metav1.ParameterCodec, apiextensionsserver.Codecs)
	if !enabled.ResourceEnabled(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")) {
		return info, nil
	}
	crds, err := customresourcedefinition.NewREST(apiextensionsserver.Scheme, getter)
	if err != nil {
		return info, err
	}
	info.VersionedResourcesStorageMap[apiextensionsv1.SchemeGroupVersion.Version] = map[string]rest.Storage{
		"customresourcedefinitions":        crds,
		"customresourcedefinitions/status": customresourcedefinition.NewStatusREST(apiextensionsserver.Scheme, crds),
	}
	return info, nil
}

package builtin

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationv1beta1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1beta1"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	apiservicerest "k8s.io/kube-aggregator/pkg/registry/apiservice/rest"
)

// apiServiceProvider makes the group of the servers that requests are handed on to, as
// kube-aggregator pkg/apiserver/apiserver.go does.
type apiServiceProvider struct{}

// GroupName implements provider.
func (apiServiceProvider) GroupName() string { return apiregistration.GroupName }

// NewRESTStorage implements provider. The group is always served.
func (apiServiceProvider) NewRESTStorage(_ serverstorage.APIResourceConfigSource, getter generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	return apiservicerest.NewRESTStorage(aggregator.DefaultAPIResourceConfigSource(), getter, false), nil
}

// apiServiceKind is what they are kept as.
func apiServiceKind() schema.GroupVersionKind {
	return apiregistrationv1.SchemeGroupVersion.WithKind("APIService")
}

// apiServiceConfig says how they are stored: in JSON (kubernetes
// pkg/controlplane/apiserver/aggregator.go).
func (f *StorageFactory) apiServiceConfig(gr schema.GroupResource) *storagebackend.ConfigForResource {
	return f.inJSON(gr, aggregatorscheme.Codecs, apiregistrationv1.SchemeGroupVersion, apiregistrationv1beta1.SchemeGroupVersion)
}

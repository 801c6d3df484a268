package registry

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

// apiServicesProvider makes the group of the servers that requests are handed on to, as
// kube-aggregator pkg/apiserver/apiserver.go does.
type apiServicesProvider struct{}

// GroupName implements provider.
func (apiServicesProvider) GroupName() string { return apiregistration.GroupName }

// NewRESTStorage implements provider. The group is always served.
func (apiServicesProvider) NewRESTStorage(_ serverstorage.APIResourceConfigSource, getter generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	return apiservicerest.NewRESTStorage(aggregator.DefaultAPIResourceConfigSource(), getter, false), nil
}

// apiServiceKind is what they are kept as.
func apiServiceKind() schema.GroupVersionKind {
	return apiregistrationv1.SchemeGroupVersion.WithKind("APIService")
}

// apiServicesConfig says how they are stored: in JSON (kubernetes
// pkg/controlplane/apiserver/aggregator.go).
func (o *options) apiServicesConfig(gr schema.GroupResource) *storagebackend.ConfigForResource {
	return o.inJSON(gr, aggregatorscheme.Codecs, apiregistrationv1.SchemeGroupVersion, apiregistrationv1beta1.SchemeGroupVersion)
}

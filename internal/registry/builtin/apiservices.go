package builtin

import (
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	apiservicerest "k8s.io/kube-aggregator/pkg/registry/apiservice/rest"
)

// apiServiceProvider makes the group of APIServices, as kube-aggregator
// pkg/apiserver/apiserver.go does.
type apiServiceProvider struct{}

// GroupName implements provider.
func (apiServiceProvider) GroupName() string { return apiregistration.GroupName }

// NewRESTStorage implements provider.
func (apiServiceProvider) NewRESTStorage(enabled serverstorage.APIResourceConfigSource, getter generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	return apiservicerest.NewRESTStorage(enabled, getter, false), nil
}

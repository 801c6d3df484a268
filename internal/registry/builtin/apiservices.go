package builtin

import (
	"fmt"

	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiservicerest "k8s.io/kube-aggregator/pkg/registry/apiservice/rest"
)

// apiServiceProvider makes the group of APIServices, as kube-aggregator
// pkg/apiserver/apiserver.go does.
type apiServiceProvider struct{}

// GroupName implements provider.
func (apiServiceProvider) GroupName() string { return apiregistration.GroupName }

// NewRESTStorage implements provider.
func (apiServiceProvider) NewRESTStorage(enabled serverstorage.APIResourceConfigSource, getter generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info := apiservicerest.NewRESTStorage(enabled, getter, false)
	if len(info.VersionedResourcesStorageMap) == 0 {
		return info, fmt.Errorf("API group/version %s must be enabled", apiregistrationv1.SchemeGroupVersion)
	}
	return info, nil
}

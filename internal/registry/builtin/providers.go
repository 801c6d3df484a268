package builtin

import (
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"
	apiservicerest "k8s.io/kube-aggregator/pkg/registry/apiservice/rest"
	controlplane "k8s.io/kubernetes/pkg/controlplane/apiserver"
	admissionregistrationrest "k8s.io/kubernetes/pkg/registry/admissionregistration/rest"
	apiserverinternalrest "k8s.io/kubernetes/pkg/registry/apiserverinternal/rest"
	appsrest "k8s.io/kubernetes/pkg/registry/apps/rest"
	authenticationrest "k8s.io/kubernetes/pkg/registry/authentication/rest"
	authorizationrest "k8s.io/kubernetes/pkg/registry/authorization/rest"
	autoscalingrest "k8s.io/kubernetes/pkg/registry/autoscaling/rest"
	batchrest "k8s.io/kubernetes/pkg/registry/batch/rest"
	certificatesrest "k8s.io/kubernetes/pkg/registry/certificates/rest"
	coordinationrest "k8s.io/kubernetes/pkg/registry/coordination/rest"
	discoveryrest "k8s.io/kubernetes/pkg/registry/discovery/rest"
	eventsrest "k8s.io/kubernetes/pkg/registry/events/rest"
	flowcontrolrest "k8s.io/kubernetes/pkg/registry/flowcontrol/rest"
	networkingrest "k8s.io/kubernetes/pkg/registry/networking/rest"
	noderest "k8s.io/kubernetes/pkg/registry/node/rest"
	policyrest "k8s.io/kubernetes/pkg/registry/policy/rest"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	resourcerest "k8s.io/kubernetes/pkg/registry/resource/rest"
	schedulingrest "k8s.io/kubernetes/pkg/registry/scheduling/rest"
	storagerest "k8s.io/kubernetes/pkg/registry/storage/rest"
	svmrest "k8s.io/kubernetes/pkg/registry/storagemigration/rest"
)

// providers lists the groups in upstream's order (kubernetes pkg/controlplane/instance.go,
// StorageProviders). If several groups have a resource name, clients resolve it to the first group.
func providers(c *Config, core *coreProvider, client kubernetes.Interface) []controlplane.RESTStorageProvider {
	return []controlplane.RESTStorageProvider{
		core,
		apiserverinternalrest.StorageProvider{},
		authenticationrest.RESTStorageProvider{Authenticator: c.Authenticator, APIAudiences: c.APIAudiences},
		authorizationrest.RESTStorageProvider{Authorizer: c.Authorizer, RuleResolver: c.RuleResolver},
		autoscalingrest.RESTStorageProvider{},
		batchrest.RESTStorageProvider{},
		certificatesrest.RESTStorageProvider{Authorizer: c.Authorizer},
		coordinationrest.RESTStorageProvider{},
		discoveryrest.StorageProvider{},
		networkingrest.RESTStorageProvider{},
		noderest.RESTStorageProvider{},
		policyrest.RESTStorageProvider{},
		rbacrest.RESTStorageProvider{Authorizer: c.Authorizer},
		schedulingrest.RESTStorageProvider{},
		storagerest.RESTStorageProvider{},
		svmrest.RESTStorageProvider{},
		flowcontrolrest.RESTStorageProvider{InformerFactory: c.Informers},
		appsrest.StorageProvider{},
		admissionregistrationrest.RESTStorageProvider{Authorizer: c.Authorizer, DiscoveryClient: client.Discovery()},
		eventsrest.RESTStorageProvider{TTL: c.EventTTL},
		resourcerest.RESTStorageProvider{NamespaceClient: client.CoreV1().Namespaces(), Authorizer: c.Authorizer},
		crdProvider{},
		apiServiceProvider{},
	}
}

// Priority orders versions in discovery: first by the priority of the group, then by the priority of the version in
// its group, the greatest first.
type Priority = controlplane.APIServicePriority

// Priorities returns the priorities of all built-in versions, as in kubernetes
// pkg/controlplane/apiserver/aggregator.go and cmd/kube-apiserver/app. The latter does not
// export its priorities, so they are repeated here.
func Priorities() map[schema.GroupVersion]Priority {
	all := controlplane.DefaultGenericAPIServicePriorities()
	add := func(group string, priority int32, versions map[string]int32) {
		for version, v := range versions {
			all[schema.GroupVersion{Group: group, Version: version}] = Priority{Group: priority, Version: v}
		}
	}
	add("apps", 17800, map[string]int32{"v1": 15})
	add("autoscaling", 17500, map[string]int32{"v1": 15, "v2": 30, "v2beta1": 9, "v2beta2": 1})
	add("batch", 17400, map[string]int32{"v1": 15, "v1beta1": 9, "v2alpha1": 9})
	add("networking.k8s.io", 17200, map[string]int32{"v1": 15, "v1beta1": 9})
	add("policy", 17100, map[string]int32{"v1": 15, "v1beta1": 9})
	add("storage.k8s.io", 16800, map[string]int32{"v1": 15, "v1beta1": 9, "v1alpha1": 1})
	add("scheduling.k8s.io", 16600, map[string]int32{"v1": 15, "v1alpha2": 2})
	add("node.k8s.io", 16300, map[string]int32{"v1": 15, "v1beta1": 9, "v1alpha1": 1})
	add("resource.k8s.io", 16200, map[string]int32{"v1": 21, "v1beta2": 15, "v1beta1": 9, "v1alpha3": 1})
	// The group of APIServices has no APIService of its own, and comes before all others.
	own := schema.GroupVersion(aggregator.APIRegistrationGroupVersion)
	all[own] = Priority{Group: int32(aggregator.APIRegistrationGroupPriority)}
	return all
}

// crdProvider makes the group of CRDs, as
// apiextensions-apiserver pkg/apiserver/apiserver.go does.
type crdProvider struct{}

func (crdProvider) GroupName() string { return apiextensions.GroupName }

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

// apiServiceProvider makes the group of APIServices, as kube-aggregator
// pkg/apiserver/apiserver.go does.
type apiServiceProvider struct{}

func (apiServiceProvider) GroupName() string { return apiregistration.GroupName }

func (apiServiceProvider) NewRESTStorage(enabled serverstorage.APIResourceConfigSource, getter generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	return apiservicerest.NewRESTStorage(enabled, getter, false), nil
}

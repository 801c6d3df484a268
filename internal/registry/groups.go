package registry

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/kubernetes"
	basecompatibility "k8s.io/component-base/compatibility"
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

// Group is one API group with its served versions.
type Group struct {
	// Name is "" for the core group, which is served under /api.
	Name string

	// Preferred is the version that clients should choose: the first by priority.
	Preferred schema.GroupVersion

	// Versions are those that are served, by priority.
	Versions []GroupVersion

	// Info is what upstream's provider made. It is not to be changed.
	Info *genericapiserver.APIGroupInfo
}

// GroupVersion is one served version with its endpoints, ordered by name.
type GroupVersion struct {
	schema.GroupVersion
	Endpoints []*Endpoint
}

// provider makes the REST storages of one group. It is the interface of
// kubernetes pkg/controlplane/apiserver, RESTStorageProvider.
type provider interface {
	GroupName() string
	NewRESTStorage(serverstorage.APIResourceConfigSource, generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error)
}

// providers lists every group in the order in which kubernetes
// pkg/controlplane/instance.go, StorageProviders, installs them: clients resolve a
// resource name that several groups have to the first of them.
func (r *Registry) providers(client kubernetes.Interface) []provider {
	c := &r.config
	return []provider{
		r.core,
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
		definitionsProvider{},
		apiServicesProvider{},
	}
}

func (r *Registry) buildGroups() error {
	client, err := kubernetes.NewForConfig(r.config.ClientConfig)
	if err != nil {
		return err
	}
	version := compatibility.DefaultComponentGlobalsRegistry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent)
	expiration, err := genericapiserver.NewResourceExpirationEvaluatorFromOptions(genericapiserver.ResourceExpirationEvaluatorOptions{
		CurrentVersion: version.EmulationVersion(),
		Prerelease:     version.BinaryVersion().PreRelease(),
	})
	if err != nil {
		return err
	}
	for _, p := range r.providers(client) {
		group, err := r.buildGroup(p, expiration)
		if err != nil {
			return fmt.Errorf("group %q: %w", p.GroupName(), err)
		}
		if group != nil {
			r.groups = append(r.groups, group)
		}
	}
	return nil
}

// buildGroup returns nil for a group of which nothing is enabled. The steps are
// those of kubernetes pkg/controlplane/apiserver/apis.go, InstallAPIs.
func (r *Registry) buildGroup(p provider, expiration genericapiserver.ResourceExpirationEvaluator) (*Group, error) {
	info, err := p.NewRESTStorage(r.config.APIResources, r.options)
	if err != nil {
		return nil, err
	}
	storages := info.VersionedResourcesStorageMap
	if len(storages) == 0 {
		return nil, nil
	}
	if err := expiration.RemoveUnavailableKinds(p.GroupName(), info.Scheme, storages, r.config.APIResources); err != nil {
		return nil, err
	}
	if len(storages) == 0 {
		return nil, nil
	}
	group := &Group{Name: p.GroupName(), Preferred: info.PrioritizedVersions[0], Info: &info}
	for _, gv := range info.PrioritizedVersions {
		if len(storages[gv.Version]) == 0 {
			continue
		}
		endpoints, err := r.buildVersion(&info, gv)
		if err != nil {
			return nil, err
		}
		group.Versions = append(group.Versions, GroupVersion{GroupVersion: gv, Endpoints: endpoints})
	}
	return group, nil
}

func (r *Registry) buildVersion(info *genericapiserver.APIGroupInfo, gv schema.GroupVersion) ([]*Endpoint, error) {
	endpoints, err := buildEndpoints(info, gv)
	if err != nil {
		return nil, err
	}
	for _, e := range endpoints {
		r.endpoints[endpointKey{e.GVR, e.Subresource}] = e
		if err := r.attachView(e); err != nil {
			return nil, fmt.Errorf("%s: %w", e.GVR, err)
		}
	}
	return endpoints, nil
}

// attachView gives a stored endpoint its View.
func (r *Registry) attachView(e *Endpoint) error {
	res := r.options.resource(e.GVR.GroupResource())
	if res == nil || e.Subresource != "" || !is[rest.Watcher](e.Storage) {
		return nil
	}
	var err error
	e.View, err = newView(res, e.GVK, e.Storage)
	return err
}

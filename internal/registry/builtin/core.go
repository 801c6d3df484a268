package builtin

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	policyclient "k8s.io/client-go/kubernetes/typed/policy/v1"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/cluster/ports"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/probe"
	"k8s.io/kubernetes/pkg/registry/core/componentstatus"
	endpointsstore "k8s.io/kubernetes/pkg/registry/core/endpoint/storage"
	limitrangestore "k8s.io/kubernetes/pkg/registry/core/limitrange/storage"
	nodestore "k8s.io/kubernetes/pkg/registry/core/node/storage"
	pvstore "k8s.io/kubernetes/pkg/registry/core/persistentvolume/storage"
	pvcstore "k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim/storage"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"
	podtemplatestore "k8s.io/kubernetes/pkg/registry/core/podtemplate/storage"
	controllerstore "k8s.io/kubernetes/pkg/registry/core/replicationcontroller/storage"
	corerest "k8s.io/kubernetes/pkg/registry/core/rest"
	"k8s.io/kubernetes/pkg/registry/core/service/allocator"
	"k8s.io/kubernetes/pkg/registry/core/service/portallocator"
	servicestore "k8s.io/kubernetes/pkg/registry/core/service/storage"
	serviceaccountstore "k8s.io/kubernetes/pkg/registry/core/serviceaccount/storage"
	kubeschedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"

	"github.com/larder-io/larder/internal/registry/backend"
)

const rangesPrefix = "/ranges"

// coreProvider makes the core group. It does what kubernetes
// pkg/registry/core/rest/storage_core.go does, except that nothing in it dials etcd
// and nothing starts before Run.
type coreProvider struct {
	generic    corerest.GenericConfig // makes storages that need no pods and nodes
	config     *Config
	nodePorts  *portallocator.PortAllocator
	nodeRange  *rangeAllocator
	serviceIPs *serviceIPs
	health     []func(context.Context) error // of the stores
	proxy      http.RoundTripper             // to pods and services
}

func newCoreProvider(config *Config, factory *StorageFactory, records Records, health []func(context.Context) error) (*coreProvider, error) {
	p := &coreProvider{config: config, generic: config.GenericConfig, health: health}
	p.generic.StorageFactory = factory.factory
	// It connects to pods and services by address, so it cannot verify certificates.
	p.proxy = backend.Transport(utilnet.SetTransportDefaults(&http.Transport{
		DialContext: config.ProxyDial, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}))
	if err := p.buildRanges(factory, records); err != nil {
		return nil, err
	}
	return p, nil
}

// buildRanges makes the allocators of node ports and service addresses.
func (p *coreProvider) buildRanges(factory *StorageFactory, records Records) error {
	ports, addresses := api.Resource("servicenodeportallocations"), api.Resource("serviceipallocations")
	encoded, err := factory.RecordConfig(ports, api.Resource("services"), &api.Service{})
	if err != nil {
		return err
	}
	store, err := records(encoded, rangesPrefix, func() runtime.Object { return &api.RangeAllocation{} })
	if err != nil {
		return err
	}
	kept := func(made **rangeAllocator, name string, gr schema.GroupResource) allocator.AllocatorWithOffsetFactory {
		return func(size int, spec string, offset int) (allocator.Interface, error) {
			*made = &rangeAllocator{
				storage: store, key: rangesPrefix + "/" + name, resource: gr,
				bitmap: allocator.NewAllocationMapWithOffset(size, spec, offset),
			}
			return *made, nil
		}
	}
	if p.nodePorts, err = portallocator.New(p.config.Services.NodePortRange, kept(&p.nodeRange, "servicenodeports", ports)); err != nil {
		return err
	}
	p.nodePorts.EnableMetrics()
	p.serviceIPs, err = newServiceIPs(p.config, func(made **rangeAllocator, name string) allocator.AllocatorWithOffsetFactory {
		return kept(made, name, addresses)
	})
	return err
}

func (p *coreProvider) GroupName() string { return api.GroupName }

func (p *coreProvider) NewRESTStorage(enabled serverstorage.APIResourceConfigSource, getter generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info, err := p.generic.NewRESTStorage(enabled, getter)
	if err != nil {
		return info, err
	}
	storages := info.VersionedResourcesStorageMap["v1"]
	if storages == nil {
		storages = make(map[string]rest.Storage)
	}
	b := coreBuilder{coreProvider: p, enabled: enabled, getter: getter, storages: storages}
	if err := b.build(); err != nil {
		return info, err
	}
	if len(storages) > 0 {
		info.VersionedResourcesStorageMap["v1"] = storages
	}
	return info, nil
}

// coreBuilder adds the storages that upstream's generic control plane lacks.
type coreBuilder struct {
	*coreProvider
	enabled  serverstorage.APIResourceConfigSource
	getter   generic.RESTOptionsGetter
	storages map[string]rest.Storage
}

// add adds a resource and its subresources if the resource is enabled.
func (b *coreBuilder) add(resource string, storages map[string]rest.Storage) {
	if !b.enabled.ResourceEnabled(corev1.SchemeGroupVersion.WithResource(resource)) {
		return
	}
	for subresource, storage := range storages {
		b.storages[resource+subresource] = storage
	}
}

func (b *coreBuilder) build() error {
	endpoints, err := endpointsstore.NewREST(b.getter)
	if err != nil {
		return err
	}
	b.add("endpoints", map[string]rest.Storage{"": endpoints})
	nodes, err := nodestore.NewStorage(b.getter, b.config.Kubelet, b.proxy)
	if err != nil {
		return err
	}
	nodes.KubeletConnectionInfo = backend.Kubelets{ConnectionInfoGetter: nodes.KubeletConnectionInfo}
	nodes.Proxy.Connection = nodes.KubeletConnectionInfo
	b.add("nodes", map[string]rest.Storage{"": nodes.Node, "/proxy": nodes.Proxy, "/status": nodes.Status})
	pods, err := b.buildPods(nodes)
	if err != nil {
		return err
	}
	if err := b.buildServices(endpoints, pods); err != nil {
		return err
	}
	if err := b.buildServiceAccounts(pods, nodes); err != nil {
		return err
	}
	return b.buildOthers()
}

func (b *coreBuilder) buildPods(nodes *nodestore.NodeStorage) (*podstore.PodStorage, error) {
	budgets, err := policyclient.NewForConfig(b.config.LoopbackClientConfig)
	if err != nil {
		return nil, err
	}
	pods, err := podstore.NewStorage(b.getter, nodes.KubeletConnectionInfo, b.proxy, budgets, b.config.Authorizer)
	if err != nil {
		return nil, err
	}
	storages := map[string]rest.Storage{
		"":                     pods.Pod,
		"/attach":              pods.Attach,
		"/binding":             pods.Binding,
		"/ephemeralcontainers": pods.EphemeralContainers,
		"/eviction":            pods.Eviction,
		"/exec":                pods.Exec,
		"/log":                 pods.Log,
		"/portforward":         pods.PortForward,
		"/proxy":               pods.Proxy,
		"/status":              pods.Status,
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.InPlacePodVerticalScaling) {
		storages["/resize"] = pods.Resize
	}
	b.add("pods", storages)
	b.add("bindings", map[string]rest.Storage{"": pods.LegacyBinding})
	return &pods, nil
}

func (b *coreBuilder) buildServices(endpoints *endpointsstore.REST, pods *podstore.PodStorage) error {
	gated := waitingOptions{RESTOptionsGetter: b.getter, ips: b.serviceIPs}
	services, status, proxy, err := servicestore.NewREST(
		gated, b.serviceIPs.primary, b.serviceIPs.allocators, b.nodePorts, endpoints, pods.Pod, b.proxy)
	if err != nil {
		return err
	}
	b.serviceIPs.awaitAllocators(services.Store)
	b.add("services", map[string]rest.Storage{"": services, "/proxy": proxy, "/status": status})
	return nil
}

// buildServiceAccounts replaces the generic storage by one that binds tokens to
// pods and nodes.
func (b *coreBuilder) buildServiceAccounts(pods *podstore.PodStorage, nodes *nodestore.NodeStorage) error {
	c := b.config
	secrets, ok := b.storages["secrets"].(rest.Getter)
	if c.ServiceAccountIssuer == nil || !ok {
		return nil
	}
	accounts, err := serviceaccountstore.NewREST(
		b.getter, c.ServiceAccountIssuer, c.APIAudiences, c.ServiceAccountMaxExpiration, pods.Pod.Store, secrets, nodes.Node.Store, c.ExtendExpiration, c.MaxExtendedExpiration)
	if err != nil {
		return err
	}
	b.add("serviceaccounts", map[string]rest.Storage{"": accounts, "/token": accounts.Token})
	return nil
}

// buildOthers adds the storages that depend on no other.
func (b *coreBuilder) buildOthers() error {
	volumes, volumeStatus, volumesErr := pvstore.NewREST(b.getter)
	claims, claimStatus, claimsErr := pvcstore.NewREST(b.getter)
	templates, templatesErr := podtemplatestore.NewREST(b.getter)
	limits, limitsErr := limitrangestore.NewREST(b.getter)
	controllers, controllersErr := controllerstore.NewStorage(b.getter)
	if err := errors.Join(volumesErr, claimsErr, templatesErr, limitsErr, controllersErr); err != nil {
		return err
	}
	b.add("persistentvolumes", map[string]rest.Storage{"": volumes, "/status": volumeStatus})
	b.add("persistentvolumeclaims", map[string]rest.Storage{"": claims, "/status": claimStatus})
	b.add("podtemplates", map[string]rest.Storage{"": templates})
	b.add("limitranges", map[string]rest.Storage{"": limits})
	b.add("replicationcontrollers", map[string]rest.Storage{
		"": controllers.Controller, "/scale": controllers.Scale, "/status": controllers.Status})
	b.add("componentstatuses", map[string]rest.Storage{"": componentstatus.NewStorage(b.components)})
	return nil
}

// components lists what componentstatuses probes: the other control plane processes at kubeadm's
// addresses, and the stores.
func (p *coreProvider) components() map[string]componentstatus.Server {
	local := func(port int) *componentstatus.HttpServer {
		return &componentstatus.HttpServer{
			EnableHTTPS: true,
			TLSConfig:   &tls.Config{InsecureSkipVerify: true},
			Addr:        "127.0.0.1",
			Port:        port,
			Path:        "/healthz",
		}
	}
	all := map[string]componentstatus.Server{
		"controller-manager": local(ports.KubeControllerManagerPort),
		"scheduler":          local(kubeschedulerconfig.DefaultKubeSchedulerPort),
	}
	for i, health := range p.health {
		all[fmt.Sprintf("etcd-%d", i)] = storeProbe(health)
	}
	return all
}

// probeTimeout is upstream's limit of a probe (kubernetes pkg/registry/core/componentstatus/validator.go).
const probeTimeout = 20 * time.Second

// storeProbe is the health of a store, as a component.
type storeProbe func(context.Context) error

func (p storeProbe) DoServerCheck() (probe.Result, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	if err := p(ctx); err != nil {
		return probe.Failure, "", err
	}
	return probe.Success, "ok", nil
}

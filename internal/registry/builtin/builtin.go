package builtin

import (
	"context"
	"fmt"
	"time"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/kubernetes"
	basecompatibility "k8s.io/component-base/compatibility"
	api "k8s.io/kubernetes/pkg/apis/core"
	controlplane "k8s.io/kubernetes/pkg/controlplane/apiserver"
	"k8s.io/kubernetes/pkg/registry/core/rangeallocation"
)

// Builtin makes the REST storages of all built-in groups, and runs the allocators of
// service addresses. Build one with [New].
type Builtin struct {
	config  Config
	factory *StorageFactory
	records Records
	core    *coreProvider
}

// New returns a Builtin for a config that has its defaults. health probes the stores, in the
// order of the factory's Servers. New does no I/O and starts nothing.
func New(config Config, factory *StorageFactory, records Records, health []func(context.Context) error) (*Builtin, error) {
	b := &Builtin{config: config, factory: factory, records: records}
	var err error
	b.core, err = newCoreProvider(&b.config, factory, records, health)
	return b, err
}

// Groups makes the REST storages of every group that has an enabled resource, in the order
// in which upstream installs them. It is called once.
func (b *Builtin) Groups(getter generic.RESTOptionsGetter) ([]*genericapiserver.APIGroupInfo, error) {
	client, err := kubernetes.NewForConfig(b.config.LoopbackClientConfig)
	if err != nil {
		return nil, err
	}
	version := compatibility.DefaultComponentGlobalsRegistry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent)
	expiration, err := genericapiserver.NewResourceExpirationEvaluatorFromOptions(genericapiserver.ResourceExpirationEvaluatorOptions{
		CurrentVersion: version.EmulationVersion(),
		Prerelease:     version.BinaryVersion().PreRelease(),

		EmulationForwardCompatible:              b.config.EmulationForwardCompatible,
		RuntimeConfigEmulationForwardCompatible: b.config.RuntimeConfigEmulationForwardCompatible,
	})
	if err != nil {
		return nil, err
	}
	var groups []*genericapiserver.APIGroupInfo
	for _, p := range providers(&b.config, b.core, client) {
		info, err := b.info(p, getter, expiration)
		if err != nil {
			return nil, fmt.Errorf("group %q: %w", p.GroupName(), err)
		}
		if info != nil {
			groups = append(groups, info)
		}
	}
	return groups, nil
}

// info returns nil for a group without enabled resources. It follows kubernetes pkg/controlplane/apiserver/apis.go,
// InstallAPIs.
func (b *Builtin) info(p controlplane.RESTStorageProvider, getter generic.RESTOptionsGetter, expiration genericapiserver.ResourceExpirationEvaluator) (*genericapiserver.APIGroupInfo, error) {
	info, err := p.NewRESTStorage(b.config.APIResources, getter)
	if err != nil {
		return nil, err
	}
	storages := info.VersionedResourcesStorageMap
	if len(storages) == 0 {
		return nil, nil
	}
	if err := expiration.RemoveUnavailableKinds(p.GroupName(), info.Scheme, storages, b.config.APIResources); err != nil {
		return nil, err
	}
	if len(storages) == 0 {
		return nil, nil
	}
	return &info, nil
}

// Run makes the allocators of service addresses and serves them until ctx ends. It may be
// called once.
func (b *Builtin) Run(ctx context.Context) error { return b.core.serviceIPs.run(ctx) }

// NodePorts returns the record of all node ports in use, for the loop that repairs it.
func (b *Builtin) NodePorts() rangeallocation.RangeRegistry { return b.core.nodeRange }

// Addresses returns the records of the service addresses in use, by range, for the loop that repairs
// them if [ObjectAddresses] is false. A missing range is nil.
func (b *Builtin) Addresses() (primary, secondary rangeallocation.RangeRegistry) {
	records := &b.core.serviceIPs.records
	if records[0] != nil {
		primary = records[0]
	}
	if records[1] != nil {
		secondary = records[1]
	}
	return primary, secondary
}

// CountAddresses sets the gauges of allocated and available service addresses in families. Upstream's allocators do not
// set them if [ObjectAddresses] is true.
func (b *Builtin) CountAddresses(families []*dto.MetricFamily) {
	if ObjectAddresses() {
		addresses, _ := b.core.serviceIPs.informers.IPAddresses().Lister().List(labels.Everything()) // never fails
		countAddresses(families, addresses)
	}
}

// Leases returns the records of the living API servers, from which the endpoints of the kubernetes
// service are reconciled. A record expires ttl after its refresh.
func (b *Builtin) Leases(ttl time.Duration) (*Leases, error) {
	records, err := b.leaseRecords("apiServerIPInfo", masterLeases, ttl)
	return &Leases{leaseRecords: records, written: make(map[string]string)}, err
}

// PeerLeases returns the records of the addresses at which living API servers reach each other. A
// record expires after upstream's TTL, unless it is refreshed.
func (b *Builtin) PeerLeases() (*PeerLeases, error) {
	records, err := b.leaseRecords("apiServerPeerIPInfo", peerLeases, controlplane.DefaultPeerEndpointReconcilerTTL)
	return &PeerLeases{leaseRecords: records}, err
}

// leaseRecords returns records that are encoded as Endpoints. name is upstream's.
func (b *Builtin) leaseRecords(name, prefix string, ttl time.Duration) (leaseRecords, error) {
	gr := api.Resource(name)
	config, err := b.factory.RecordConfig(gr, gr, &api.Endpoints{})
	if err != nil {
		return leaseRecords{}, err
	}
	store, err := b.records(config, prefix, func() runtime.Object { return &api.Endpoints{} })
	return leaseRecords{store, prefix, ttl}, err
}

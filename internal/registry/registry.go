package registry

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/printers"
	printersinternal "k8s.io/kubernetes/pkg/printers/internalversion"
	printerstorage "k8s.io/kubernetes/pkg/printers/storage"
	corerest "k8s.io/kubernetes/pkg/registry/core/rest"

	"github.com/larder-io/larder/internal/registry/builtin"
	"github.com/larder-io/larder/internal/registry/storage"
)

// Registry has the API groups of a server. Build one with [New].
type Registry struct {
	*builtin.Builtin // Registry replaces its Groups and Run

	config       Config
	groups       groups
	options      *options
	customs      customs
	loadDeadline func() time.Time // see Config.LoadTimeout
}

// New builds all REST storages. It does no I/O and starts nothing.
func New(config Config) (*Registry, error) {
	config.setDefaults()
	r := &Registry{config: config}
	r.loadDeadline = sync.OnceValue(func() time.Time { return time.Now().Add(r.config.LoadTimeout) })
	if err := r.build(); err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	return r, nil
}

func (r *Registry) build() (err error) {
	if r.options, err = newOptions(&r.config); err != nil {
		return err
	}
	var health []func(context.Context) error
	for _, servers := range r.options.factory.Servers() {
		health = append(health, r.config.in(servers).Store.Health)
	}
	if r.Builtin, err = builtin.New(r.config.Config, r.options.factory, r.options.records, health); err != nil {
		return err
	}
	if err := r.buildGroups(); err != nil {
		return err
	}
	served := r.groups.names()
	if err := r.checkIndexLabels(served); err != nil {
		return err
	}
	return r.checkShares(served)
}

// buildGroups makes a Group of each group of upstream's providers.
func (r *Registry) buildGroups() error {
	made, err := r.Builtin.Groups(r.options)
	if err != nil {
		return err
	}
	r.groups = groups{
		endpoints: make(map[endpointKey]*Endpoint), resource: r.options.resource,
		equivalents: runtime.NewEquivalentResourceRegistryWithIdentity(r.options.factory.ResourcePrefix),
		tables:      printerstorage.TableConvertor{TableGenerator: printers.NewTableGenerator().With(printersinternal.AddHandlers)},
	}
	for _, group := range made {
		if err := r.groups.add(group); err != nil {
			return err
		}
	}
	return nil
}

// checkIndexLabels rejects labels of resources that are not served.
func (r *Registry) checkIndexLabels(served []schema.GroupResource) error {
	for gr := range r.config.IndexLabels {
		if !slices.Contains(served, gr) {
			return fmt.Errorf("index labels of %q, which is not served", gr)
		}
	}
	return nil
}

// checkShares rejects shares of resources that are not served and cannot be custom resources.
func (r *Registry) checkShares(served []schema.GroupResource) error {
	for gr := range r.config.CacheShares {
		custom := !r.options.factory.HasGroup(gr.Group) && strings.Contains(gr.Group, ".")
		if custom || slices.Contains(served, gr) {
			continue
		}
		err := fmt.Errorf("cache limit of %q, which is not served", gr)
		for _, other := range served {
			if other.Resource == gr.Resource {
				return fmt.Errorf("%w; %q is", err, other)
			}
		}
		return err
	}
	return nil
}

// Run follows the store, updates every cache and runs the allocators until ctx ends or one of them
// fails. It returns when everything that it started has ended, and nil if ctx has ended.
func (r *Registry) Run(ctx context.Context) error {
	group, inner := errgroup.WithContext(ctx)
	for _, tail := range append(r.config.tails(), r.config.Tail) {
		group.Go(func() error { return tail.Run(inner) })
	}
	group.Go(func() error { return r.Builtin.Run(inner) })
	for _, res := range r.options.resources {
		group.Go(func() error { return res.Run(inner) })
	}
	checker := storage.ConsistencyChecker{Resources: r.storedResources, Interval: r.config.CheckInterval, Logger: r.config.Logger}
	group.Go(func() error { return checker.Run(inner) })
	if err := group.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

// storedResources lists the stored resources, including custom resources.
func (r *Registry) storedResources() []*storage.Resource {
	builtin := r.options.resources
	return append(builtin[:len(builtin):len(builtin)], r.customs.all()...)
}

// WaitReady blocks until every cache has loaded, or until Config.LoadTimeout has passed since its first call, so that a
// cache that cannot load does not prevent the server from serving the others. [Registry.Unready] lists such caches. They are served once
// they have loaded.
func (r *Registry) WaitReady(ctx context.Context) error {
	loading, cancel := context.WithDeadline(ctx, r.loadDeadline())
	defer cancel()
	for _, res := range r.options.resources {
		if err := res.WaitReady(loading); err != nil && (ctx.Err() != nil || loading.Err() == nil) {
			return fmt.Errorf("registry: %s: %w", res.GroupResource, err)
		}
	}
	return nil
}

// Unready lists the resources whose caches have not loaded yet.
func (r *Registry) Unready() []schema.GroupResource {
	var unready []schema.GroupResource
	for _, res := range r.options.resources {
		if !res.Ready() {
			unready = append(unready, res.GroupResource)
		}
	}
	return unready
}

// Progress is the progress of loading the caches.
type Progress struct {
	Ready, Resources int   // loaded caches, all caches
	Objects          int64 // objects loaded so far
}

// Progress returns the current progress of loading the caches.
func (r *Registry) Progress() Progress {
	p := Progress{Resources: len(r.options.resources)}
	for _, res := range r.options.resources {
		if res.Ready() {
			p.Ready++
		}
		p.Objects += res.Reflector.Stats.Loaded.Load()
	}
	return p
}

// Groups lists the served groups in the order in which kube-apiserver installs them. If several groups have a
// resource of one name, clients prefer the first.
func (r *Registry) Groups() []*Group { return r.groups.list }

// Resources lists the stored resources, each once.
func (r *Registry) Resources() []*storage.Resource { return r.options.resources }

// Endpoint returns the endpoint of a resource or of one of its subresources, nil if
// there is none.
func (r *Registry) Endpoint(gvr schema.GroupVersionResource, subresource string) *Endpoint {
	return r.groups.endpoints[endpointKey{gvr, subresource}]
}

// Equivalents maps each endpoint to the endpoints that serve the same objects in other versions or groups.
func (r *Registry) Equivalents() runtime.EquivalentResourceMapper { return r.groups.equivalents }

// Services returns the ranges of service addresses and ports.
func (r *Registry) Services() corerest.ServicesConfig { return r.config.Services }

// Budgets lists all budgets, the shared one first.
func (r *Registry) Budgets() []ResourceBudget { return r.options.budgets.list() }

// ReadMetrics returns the metrics of the reads of all resources.
func (r *Registry) ReadMetrics() *storage.ReadMetrics { return r.options.reads }

// CustomResource returns the newest state of a custom resource that has a cache, nil if there is none.
func (r *Registry) CustomResource(gr schema.GroupResource) *storage.Resource {
	return r.customs.newest(gr)
}

// CustomResources lists the newest states of the custom resources that have caches.
func (r *Registry) CustomResources() []*storage.Resource {
	return r.customs.allNewest()
}

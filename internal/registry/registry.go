package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/kubernetes/pkg/registry/core/rangeallocation"

	"github.com/larder-io/larder/internal/registry/builtin"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/storage"
	"github.com/larder-io/larder/internal/registry/transcode"
	"github.com/larder-io/larder/kv"
)

// Config says what a Registry is built from. Store, Tail, and of the embedded Config
// ClientConfig, Informers and Authorizer are required; other fields have kube-apiserver's
// defaults.
type Config struct {
	// Store holds the objects. Tail follows everything under Prefix in it.
	Store kv.Store
	Tail  *kv.Tail

	// Config is what the REST storages are made with.
	builtin.Config

	// Transformers encrypt at rest; nil stores plain text.
	Transformers value.ResourceTransformers

	// CacheBytes bounds what all caches together keep beside the present objects in
	// their canonical encoding: other encodings, frames of events, and the past. 0 means half
	// of what those objects take, though at least 144 MiB, for encodings and frames; with the
	// past twice what they take, though at least 256 MiB; and at most three eighths of
	// the memory limit of the process. Less than 0 means no bound.
	CacheBytes int64
	// CacheShares are parts of that for single resources, 0 of which keeps nothing. Such
	// a resource takes no more than its share, and nothing that is kept of others takes
	// anything from it; what it does not use, they have. Where CacheBytes is no figure,
	// shares come beside what it stands for.
	CacheShares map[schema.GroupResource]int64

	// DeleteCollectionWorkers is how many deletions of one collection run at once;
	// 0 means 1.
	DeleteCollectionWorkers int

	// DisableGarbageCollection turns off the finalizers that the garbage collector
	// of the controller manager needs.
	DisableGarbageCollection bool

	// IndexLabels are label keys by whose values objects of a resource are found
	// without a search. Others are learnt from what clients ask for.
	IndexLabels map[schema.GroupResource][]string

	// CheckInterval is how often each cache is compared with the store; 0 is never.
	CheckInterval time.Duration

	// LoadPatience is how long after Run has begun WaitReady waits for caches that do
	// not load; 0 means 40 seconds.
	LoadPatience time.Duration

	// Logger tells of what the caches meet; nil discards.
	Logger *slog.Logger
}

// Registry is every API group that a server serves. Build one with [New].
type Registry struct {
	config    Config
	groups    []*Group
	endpoints map[endpointKey]*Endpoint
	options   *options
	builtin   *builtin.Builtin
	budgets   *budgets
	planner   *transcode.Planner
	customs   customs

	// patience ends, by impatient, when caches are waited for no longer.
	patience  context.Context
	impatient context.CancelFunc
}

type endpointKey struct {
	schema.GroupVersionResource
	subresource string
}

// New builds all REST storages. It does no I/O and starts nothing.
func New(config Config) (*Registry, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	config.setDefaults()
	r := &Registry{
		config:    config,
		endpoints: make(map[endpointKey]*Endpoint),
		planner:   encoding.NewPlanner(),
	}
	r.patience, r.impatient = context.WithCancel(context.Background())
	var err error
	if r.options, err = newOptions(r); err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	if r.budgets, err = newBudgets(&r.config, r.options); err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	if r.builtin, err = builtin.New(r.config.Config, r.options.factory, r.options.records, r.config.Store.Health); err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	if err := r.buildGroups(); err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	if err := r.checkIndexLabels(); err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	if err := r.checkShares(); err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	return r, nil
}

// checkIndexLabels refuses labels of resources that are not served.
func (r *Registry) checkIndexLabels() error {
	served := make(map[schema.GroupResource]bool)
	for key := range r.endpoints {
		served[key.GroupResource()] = true
	}
	for gr := range r.config.IndexLabels {
		if !served[gr] {
			return fmt.Errorf("labels to index of %q, which is not served", gr)
		}
	}
	return nil
}

func (c *Config) check() error {
	switch {
	case c.Store == nil:
		return errors.New("registry: Config.Store is missing")
	case c.Tail == nil:
		return errors.New("registry: Config.Tail is missing")
	}
	return c.Config.Check()
}

// setDefaults fills in what kube-apiserver would, on a copy of the caller's.
func (c *Config) setDefaults() {
	c.Config.SetDefaults()
	if c.DeleteCollectionWorkers == 0 {
		c.DeleteCollectionWorkers = 1
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.LoadPatience == 0 {
		c.LoadPatience = 40 * time.Second
	}
}

// Run follows the store, keeps every cache and serves the allocators until ctx
// ends, which is no error, or one of them fails. It returns when all that it
// started has ended.
func (r *Registry) Run(ctx context.Context) error {
	group, inner := errgroup.WithContext(ctx)
	group.Go(func() error { return r.config.Tail.Run(inner) })
	group.Go(func() error { return r.builtin.Run(inner) })
	for _, res := range r.options.resources {
		group.Go(func() error { return res.Run(inner) })
	}
	checker := storage.Checker{
		Resources: r.kept, Kept: r.customs.holds, Interval: r.config.CheckInterval, Logger: r.config.Logger,
	}
	group.Go(func() error { return checker.Run(inner) })
	group.Go(func() error {
		timer := time.NewTimer(r.config.LoadPatience)
		defer timer.Stop()
		select {
		case <-timer.C:
			r.impatient()
			return nil
		case <-inner.Done():
			return inner.Err()
		}
	})
	if err := group.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

// kept lists the resources that are stored at the moment, with those of CRDs.
func (r *Registry) kept() []*storage.Resource {
	builtin := r.options.resources
	return append(builtin[:len(builtin):len(builtin)], r.customs.all()...)
}

// WaitReady blocks until every cache has loaded, or for a while: one that hangs must not
// hold up the others for good. What has not loaded by then answers as soon as it has, and
// [Registry.Late] names it.
func (r *Registry) WaitReady(ctx context.Context) error {
	patient, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.patience, cancel)()
	for _, res := range r.options.resources {
		err := res.WaitReady(patient)
		if err != nil && (ctx.Err() != nil || r.patience.Err() == nil) {
			return fmt.Errorf("registry: %s: %w", res.GroupResource, err)
		}
	}
	return nil
}

// Late lists the resources whose caches have not loaded yet.
func (r *Registry) Late() []schema.GroupResource {
	var late []schema.GroupResource
	for _, res := range r.options.resources {
		if !res.Ready() {
			late = append(late, res.GroupResource)
		}
	}
	return late
}

// Progress says how far the caches have loaded.
type Progress struct {
	Ready, Resources int   // caches loaded, caches in all
	Objects          int64 // objects mirrored so far
}

// Progress reports the state of loading at this moment.
func (r *Registry) Progress() Progress {
	p := Progress{Resources: len(r.options.resources)}
	for _, res := range r.options.resources {
		if res.Ready() {
			p.Ready++
		}
		p.Objects += res.Mirrored()
	}
	return p
}

// Groups lists the served groups in the order in which upstream installs them,
// which is the order of preference for a resource name that several groups have.
func (r *Registry) Groups() []*Group { return r.groups }

// Resources lists the stored resources, each once.
func (r *Registry) Resources() []*storage.Resource { return r.options.resources }

// Endpoint returns the endpoint of a resource, or of a subresource of it, and nil
// if there is none.
func (r *Registry) Endpoint(gvr schema.GroupVersionResource, subresource string) *Endpoint {
	return r.endpoints[endpointKey{gvr, subresource}]
}

// Services says what addresses and ports services get.
func (r *Registry) Services() Services { return r.config.Services }

// NodePorts is the record of all node ports in use, for the loop that repairs it.
func (r *Registry) NodePorts() rangeallocation.RangeRegistry { return r.builtin.NodePorts() }

// Leases returns the records of the API servers alive, with which the endpoints of
// the kubernetes service are reconciled. A record expires ttl after its refresh.
func (r *Registry) Leases(ttl time.Duration) (*Leases, error) { return r.builtin.Leases(ttl) }

// Decodes counts the decodings of cached bytes over all resources.
func (r *Registry) Decodes() uint64 {
	var n uint64
	for _, res := range r.Resources() {
		n += res.Decodes()
	}
	return n
}

package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/client-go/informers"
	restclient "k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/controlplane"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/transcode"
	"github.com/larder-io/larder/kv"
)

// Config says what a Registry is built from. Store, Tail, ClientConfig, Informers
// and Authorizer are required; other fields have kube-apiserver's defaults.
type Config struct {
	// Store holds the objects. Tail follows everything under Prefix in it.
	Store kv.Store
	Tail  *kv.Tail

	// Prefix starts every key in the store; "" means "/registry".
	Prefix string

	// ClientConfig reaches this very server, with a transport inside the process.
	// Storages that ask the API (disruption budgets, service addresses) use it,
	// after Run has started.
	ClientConfig *restclient.Config

	// Informers are those that the server shares. New asks for the ones it needs;
	// whoever owns them starts them.
	Informers informers.SharedInformerFactory

	// Authenticator answers token reviews. Authorizer answers access reviews, and
	// the storages for whose writes the right to write is not enough; RuleResolver
	// lists what a user may do.
	Authenticator authenticator.Request
	Authorizer    authorizer.Authorizer
	RuleResolver  authorizer.RuleResolver
	APIAudiences  authenticator.Audiences

	// APIResources says which versions and resources are served; nil means those
	// that kube-apiserver serves by default.
	APIResources *serverstorage.ResourceConfig

	// StorageMediaType is what objects are stored in; "" means protobuf.
	StorageMediaType string

	// Transformers encrypt at rest; nil stores plain text.
	Transformers value.ResourceTransformers

	// CacheBytes bounds what all caches together keep beside the present objects in
	// their canonical form: other forms, frames of events, and the past. 0 means half
	// of what those objects take, though at least 144 MiB, for forms and frames; with the
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

	// AuditInterval is how often each cache is compared with the store; 0 is never.
	AuditInterval time.Duration

	// LoadPatience is how long after Run has begun WaitReady waits for caches that do
	// not load; 0 means 40 seconds.
	LoadPatience time.Duration

	// Logger tells of what the caches meet; nil discards.
	Logger *slog.Logger

	// EventTTL is how long events are kept; 0 means one hour.
	EventTTL time.Duration

	ServiceAccounts ServiceAccounts
	Services        Services

	// Kubelet says how to reach kubelets for logs, exec and the like; the zero
	// value means kube-apiserver's defaults.
	Kubelet kubeletclient.KubeletClientConfig

	// ProxyTransport carries requests to pods and services; nil means a transport
	// that does not verify their certificates.
	ProxyTransport http.RoundTripper
}

// ServiceAccounts says how tokens of service accounts are issued. Without an
// Issuer there is no serviceaccounts/token.
type ServiceAccounts struct {
	Issuer                serviceaccount.TokenGenerator
	MaxExpiration         time.Duration
	ExtendExpiration      bool
	MaxExtendedExpiration time.Duration
}

// Services says what addresses and ports services get. The zero value means
// 10.0.0.0/24 and ports 30000 to 32767.
type Services struct {
	ClusterIPRange          net.IPNet
	SecondaryClusterIPRange net.IPNet
	NodePortRange           utilnet.PortRange
}

// Registry is every API group that a server serves. Build one with [New].
type Registry struct {
	config    Config
	groups    []*Group
	endpoints map[endpointKey]*Endpoint
	options   *options
	core      *coreProvider
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
	if r.core, err = newCoreProvider(&r.config, r.options); err != nil {
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
	case c.ClientConfig == nil:
		return errors.New("registry: Config.ClientConfig is missing")
	case c.Informers == nil:
		return errors.New("registry: Config.Informers is missing")
	case c.Authorizer == nil:
		return errors.New("registry: Config.Authorizer is missing")
	}
	return nil
}

// setDefaults fills in what kube-apiserver would, on a copy of the caller's.
func (c *Config) setDefaults() {
	if c.Prefix == "" {
		c.Prefix = defaultPrefix
	}
	if c.APIResources == nil {
		c.APIResources = controlplane.DefaultAPIResourceConfigSource()
	}
	if c.StorageMediaType == "" {
		c.StorageMediaType = defaultMediaType
	}
	if c.DeleteCollectionWorkers == 0 {
		c.DeleteCollectionWorkers = 1
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.LoadPatience == 0 {
		c.LoadPatience = 40 * time.Second
	}
	if c.EventTTL == 0 {
		c.EventTTL = time.Hour
	}
	c.ClientConfig = clientDefaults(c.ClientConfig)
	c.Services.setDefaults()
	kubeletDefaults(&c.Kubelet)
	if c.ProxyTransport == nil {
		c.ProxyTransport = newProxyTransport()
	}
}

// Run follows the store, keeps every cache and serves the allocators until ctx
// ends, which is no error, or one of them fails. It returns when all that it
// started has ended.
func (r *Registry) Run(ctx context.Context) error {
	group, inner := errgroup.WithContext(ctx)
	group.Go(func() error { return r.config.Tail.Run(inner) })
	group.Go(func() error { return r.core.serviceIPs.run(inner) })
	for _, res := range r.options.resources {
		group.Go(func() error { return res.Run(inner) })
	}
	audits := auditor{resources: r.options.resources, customs: &r.customs, interval: r.config.AuditInterval, logger: r.config.Logger}
	group.Go(func() error { return audits.run(inner) })
	group.Go(func() error {
		err := leaveAlone(inner, r.config.LoadPatience)
		if err == nil {
			r.impatient()
		}
		return err
	})
	if err := group.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
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
func (r *Registry) Resources() []*Resource { return r.options.resources }

// Endpoint returns the endpoint of a resource, or of a subresource of it, and nil
// if there is none.
func (r *Registry) Endpoint(gvr schema.GroupVersionResource, subresource string) *Endpoint {
	return r.endpoints[endpointKey{gvr, subresource}]
}

// Services says what addresses and ports services get.
func (r *Registry) Services() Services { return r.config.Services }

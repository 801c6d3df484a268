package aggregator

import (
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	dto "github.com/prometheus/client_model/go"
	apiextensionsinformers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/mux"
	clientinformers "k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/transport"
	"k8s.io/component-base/metrics"
	upstream "k8s.io/kube-aggregator/pkg/apiserver"
	clientset "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	informers "k8s.io/kube-aggregator/pkg/client/informers/externalversions"
	apiserviceinformers "k8s.io/kube-aggregator/pkg/client/informers/externalversions/apiregistration/v1"
	listers "k8s.io/kube-aggregator/pkg/client/listers/apiregistration/v1"
	v2 "k8s.io/kube-aggregator/pkg/controllers/openapi/aggregator"
	v3 "k8s.io/kube-aggregator/pkg/controllers/openapiv3/aggregator"
	statusmetrics "k8s.io/kube-aggregator/pkg/controllers/status/metrics"

	"github.com/larder-io/larder/internal/registry"
)

// Config is the configuration of an [Aggregator]. Registry, ClientConfig, Client, Services,
// CRDs, Discovery, Self and Resolver are required.
type Config struct {
	Registry *registry.Registry

	// ClientConfig and Client connect to this server.
	ClientConfig *restclient.Config
	Client       kubernetes.Interface

	// Services and CRDs are informers that the caller starts. New adds an index to CRDs, so an
	// informer of CRDs belongs to one Aggregator.
	Services coreinformers.ServiceInformer
	CRDs     apiextensionsinformers.CustomResourceDefinitionInformer

	// Discovery receives the groups of remote servers.
	Discovery aggregated.ResourceManager

	// Self is the URL of this server. APIServices of the service kubernetes go there.
	Self *url.URL

	// CertFile and KeyFile are the client certificate for remote servers, or both empty. They are
	// reloaded when they change.
	CertFile, KeyFile string

	// Dial connects to remote servers; nil does so directly.
	Dial utilnet.DialFunc

	// Resolver finds remote servers by their services.
	Resolver upstream.ServiceResolver

	// RejectRedirects replaces a redirect of a remote server by 502.
	RejectRedirects bool
}

// Aggregator proxies requests to remote servers.
type Aggregator struct {
	config     Config
	client     clientset.Interface
	informers  informers.SharedInformerFactory
	lister     listers.APIServiceLister
	slices     clientinformers.SharedInformerFactory // of EndpointSlices alone
	resolver   upstream.ServiceResolver
	identity   atomic.Pointer[dynamiccertificates.DynamicCertKeyPairContent] // the client certificate for remote servers; may be nil
	metrics    *statusmetrics.Metrics
	registered metrics.KubeRegistry // holds metrics

	dial *transport.DialHolder // may be nil; the same for all servers, so that transports are shared

	swagger   *swagger
	openAPIv3 openAPIv3

	routes       atomic.Pointer[map[string]*proxy] // remote servers by "group/version"
	started      chan struct{}                     // closed once Run has started the controllers
	hooks        map[string]chan struct{}          // immutable; each channel is closed once
	pending      pending
	mayBeUnready atomic.Bool // by AllowUnready

	running      sync.WaitGroup // the controllers of Run
	remoteWanted chan struct{}  // closed when there is a remote server
}

// resync is the interval in which the controllers handle every APIService again, as upstream has.
const resync = 5 * time.Minute

// New returns an Aggregator without remote servers. It does no I/O and starts nothing.
func New(config Config) (*Aggregator, error) {
	a := &Aggregator{config: config, metrics: statusmetrics.New(), registered: metrics.NewKubeRegistry(), remoteWanted: make(chan struct{}), started: make(chan struct{})}
	a.routes.Store(&map[string]*proxy{})
	if config.Dial != nil {
		a.dial = &transport.DialHolder{Dial: config.Dial}
	}
	var err error
	if a.client, err = clientset.NewForConfig(config.ClientConfig); err != nil {
		return nil, fmt.Errorf("aggregator: %w", err)
	}
	if err := a.metrics.Register(a.registered.Register, a.registered.CustomRegister); err != nil {
		return nil, fmt.Errorf("aggregator: %w", err)
	}
	a.informers = informers.NewSharedInformerFactory(a.client, resync)
	a.lister = a.apiServices().Lister()
	a.slices = clientinformers.NewSharedInformerFactory(config.Client, 0)
	a.resolver = upstream.NewLoopbackServiceResolver(config.Resolver, config.Self)
	if err := config.CRDs.Informer().AddIndexers(cache.Indexers{byServed: servedVersions}); err != nil {
		return nil, fmt.Errorf("aggregator: %w", err)
	}
	a.swagger = &swagger{downloader: v2.NewDownloader(), known: make(map[string]*swaggerOf)}
	a.openAPIv3.served = mux.NewPathRecorderMux("openapi/v3")
	if a.openAPIv3.SpecProxier, err = v3.BuildAndRegisterAggregator(v3.NewDownloader(), nil, nil, nil, a.openAPIv3.served); err != nil {
		return nil, fmt.Errorf("aggregator: %w", err)
	}
	a.hooks = newHooks(a.started, config.CertFile != "")
	a.pending.init(a.builtIn())
	return a, nil
}

// APIServices is the informer that the Aggregator follows, which Run starts.
func (a *Aggregator) APIServices() cache.SharedIndexInformer { return a.apiServices().Informer() }

func (a *Aggregator) apiServices() apiserviceinformers.APIServiceInformer {
	return a.informers.Apiregistration().V1().APIServices()
}

// certificate returns the client certificate for remote servers and its key as they are now.
func (a *Aggregator) certificate() (cert, key []byte) {
	if files := a.identity.Load(); files != nil {
		return files.CurrentCertKeyContent()
	}
	return nil, nil
}

// Gather implements prometheus.Gatherer, for metrics of the availability of APIServices.
func (a *Aggregator) Gather() ([]*dto.MetricFamily, error) { return a.registered.Gather() }

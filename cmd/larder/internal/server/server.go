package server

import (
	"cmp"
	"net"
	"strconv"
	"sync"
	"time"

	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storageversion"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/cmd/larder/internal/checkpoint"
	"github.com/larder-io/larder/cmd/larder/internal/server/datadir"
	"github.com/larder-io/larder/cmd/larder/internal/server/lifecycle"
	"github.com/larder-io/larder/cmd/larder/internal/server/loopback"
	"github.com/larder-io/larder/cmd/larder/internal/server/servingcert"
	"github.com/larder-io/larder/cmd/larder/internal/server/storestats"
	"github.com/larder-io/larder/cmd/larder/internal/testcontrollers"
	"github.com/larder-io/larder/httpapi"
	"github.com/larder-io/larder/httpapi/aggregator"
	"github.com/larder-io/larder/httpapi/customresources"
	"github.com/larder-io/larder/internal/admission"
	"github.com/larder-io/larder/internal/auth"
	"github.com/larder-io/larder/internal/flow"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/bootstrap"
	"github.com/larder-io/larder/kv"
)

// Server is a Larder process.
type Server struct {
	config   Config
	progress *progress
	layers   *lifecycle.Layers
	ready    readiness
	metrics  *storestats.Metrics

	// Set while Run starts, in this order.
	dir      *datadir.Dir
	id       *identity
	listener net.Listener
	store    *kv.Etcd
	tail     *kv.Tail          // the tail of store
	fence    *checkpoint.Fence // wraps the stores; nil without checkpoints
	serving  time.Time         // start of serving
	begun    chan struct{}     // closed at the start of serving
	accept   chan struct{}     // closed when connections are accepted
	open     func()            // closes accept; may be called repeatedly

	resources *serverstorage.ResourceConfig // served resources
	overrides []*override                   // stores of single resources
	egress    egress
	traces    *traces // nil without tracing
	parts     parts
}

// New checks config and returns a Server.
func New(config Config) (*Server, error) {
	config.complete()
	if err := config.validate(); err != nil {
		return nil, err
	}
	s := &Server{
		config: config, layers: lifecycle.New(), metrics: storestats.NewMetrics(config.Etcd.StorageConfig.DBMetricPollInterval),
		ready: readiness{make(chan struct{}), make(chan struct{})}, begun: make(chan struct{}), accept: make(chan struct{}),
	}
	s.open = sync.OnceFunc(func() { close(s.accept) })
	if config.Checkpoints {
		s.fence = new(checkpoint.Fence)
	}
	return s, nil
}

// parts are the parts of a server that buildAuth and build create.
type parts struct {
	transport        *loopback.Transport
	loopback         *rest.Config // reaches this server through transport
	client           kubernetes.Interface
	auth             *auth.Auth
	stopWaiting      func()      // ends the wait of access decisions for their first sync
	audit            *auth.Audit // nil without an audit backend
	encryption       encryption
	flow             *flow.Control // nil if API Priority and Fairness is disabled
	certificates     *servingcert.Certificates
	informers        informers.SharedInformerFactory
	informersStarted chan struct{}           // closed once informers has started
	informersEnd     chan struct{}           // closed to end informers
	services         webhook.ServiceResolver // finds webhooks and aggregated servers
	webhooks         *admission.Webhooks
	admission        *admission.Chain
	registry         *registry.Registry
	versions         storageversion.Manager // nil if storage versions are not published
	bootstrap        *bootstrap.Bootstrap
	extensions       *customresources.Extensions
	aggregator       *aggregator.Aggregator
	peers            *peers // nil without --peer-ca-file
	http             *httpapi.Server
	controllers      *testcontrollers.Controllers // nil unless Config.TestControllers
}

// readiness has channels that are closed during the start. A channel is also closed when the server stops waiting for a
// late part.
type readiness struct {
	loaded, synced chan struct{}
}

// externalAddress returns the address at which other members of the cluster reach this server.
func (s *Server) externalAddress() string {
	host := cmp.Or(s.config.GenericServerRunOptions.ExternalHost, s.id.advertise.String())
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(host, strconv.Itoa(s.config.SecureServing.BindPort))
}

package bench

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/larder-io/larder/bench/process"
)

// Target is an API server under load. Its methods may be called concurrently. Its fields must be set before the
// first call.
type Target struct {
	// Process is the server's process, zero if it runs on another machine.
	Process process.Process
	// Beside are processes that work for the server, such as its etcd. Their usage is reported separately.
	Beside []process.Process
	// Timeout limits a request, including the body of its response. It limits a watch until the server accepts it,
	// and a watch with initial events until the bookmark that ends these. It also limits the opening of a
	// connection. 0 sets no limit. Requests that take longer are canceled and counted as Timeouts.
	Timeout time.Duration
	// RetryAfter makes workloads retry a request that gets 429 (Too Many Requests), after the time in
	// its Retry-After header. The latency includes the wait.
	RetryAfter bool
	Series     bool
	// BeforeMeasuring, unless nil, is called before each measured part, which begins when it returns. Concurrent
	// workloads use it to begin together.
	BeforeMeasuring func()

	config   *rest.Config
	tls      *tls.Config       // nil for plain HTTP
	host     string            // host:port
	origin   string            // scheme, host and path prefix of all requests
	shared   *sharedTransports // nil over HTTP/1.1
	protocol *atomic.Value     // protocol of the last response, a string

	stopping context.Context // ends with Stop
	stop     context.CancelFunc
	running  *sync.Map // the recorders of running workloads
}

// grace is how long operations in flight may take after Stop.
const grace = 5 * time.Second

// Stop ends the running workload and all later ones. They start no more operations, allow those in flight a few
// seconds, and return the results so far, with Interrupted set. Stop may be called at any time, more than once.
func (t *Target) Stop() { t.stop() }

// Stopping is closed by Stop.
func (t *Target) Stopping() <-chan struct{} { return t.stopping.Done() }

func (t *Target) stopped() bool { return t.stopping.Err() != nil }

// graceful returns a context that ends when ctx ends, or some time after Stop.
func (t *Target) graceful(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	off := context.AfterFunc(t.stopping, func() { time.AfterFunc(grace, cancel) })
	return ctx, func() { off(); cancel() }
}

// NewTarget returns the server of the current context of a kubeconfig file. It does no I/O beyond reading the file.
func NewTarget(kubeconfig string) (*Target, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("bench: kubeconfig: %w", err)
	}
	return TargetOf(config)
}

// TargetOf returns the server of a client configuration.
func TargetOf(config *rest.Config) (*Target, error) {
	config.QPS = -1
	server, err := url.Parse(config.Host)
	if err != nil {
		return nil, fmt.Errorf("bench: kubeconfig: server: %w", err)
	}
	t := &Target{config: config, host: server.Host, protocol: &atomic.Value{}, running: &sync.Map{}}
	t.stopping, t.stop = context.WithCancel(context.Background())
	port := "443"
	switch server.Scheme {
	case "http":
		port = "80"
	case "https":
		if t.tls, err = rest.TLSConfigFor(config); err != nil {
			return nil, fmt.Errorf("bench: kubeconfig: %w", err)
		}
		if t.tls == nil {
			t.tls = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		t.tls.NextProtos = nil
		t.config.NextProtos = []string{"http/1.1"} // for client-go; UseHTTP2 resets it
		if t.tls.ServerName == "" {
			t.tls.ServerName = server.Hostname()
		}
	default:
		return nil, fmt.Errorf("bench: kubeconfig: server %q is not an http or https URL", config.Host)
	}
	if server.Port() == "" {
		t.host = net.JoinHostPort(server.Hostname(), port)
	}
	t.origin = server.Scheme + "://" + t.host + server.Path
	return t, nil
}

// Address returns the server's host and port.
func (t *Target) Address() string { return t.host }

// Clone returns a Target of the same server, with separate workloads and connections. The clone does not report the
// server's cost. Stop stops both.
func (t *Target) Clone() *Target {
	other := &Target{
		Timeout: t.Timeout, RetryAfter: t.RetryAfter, Series: t.Series,
		config: rest.CopyConfig(t.config), tls: t.tls, host: t.host, origin: t.origin, protocol: t.protocol,
		stopping: t.stopping, stop: t.stop, running: t.running,
	}
	if t.shared != nil {
		other.shared = &sharedTransports{streams: t.shared.streams}
	}
	return other
}

// As returns a Clone that reports the cost of the same processes and sends another bearer token.
func (t *Target) As(token string) *Target {
	other := t.Clone()
	other.Process, other.Beside = t.Process, t.Beside
	other.config.BearerToken, other.config.BearerTokenFile = token, ""
	return other
}

// Impersonating returns a Clone that impersonates another user. The kubeconfig's user needs the permission.
func (t *Target) Impersonating(user string, groups ...string) *Target {
	other := t.Clone()
	other.config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
	return other
}

// Progress describes the running workloads of the Target and its Clones in one line, "" if none runs. It may be called
// at any time.
func (t *Target) Progress() string {
	var all []string
	for rec := range t.running.Range {
		all = append(all, rec.(*recorder).progress())
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

package bench

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/larder-io/larder/bench/process"
)

// Target is one API server under load. Its methods may be called concurrently;
// its fields are set before the first call.
type Target struct {
	// Process is the server's process, zero when it runs elsewhere.
	Process process.Process
	// Beside are processes that work for the server, its etcd for instance: their
	// usage is reported apart.
	Beside []process.Process

	config *rest.Config
	tls    *tls.Config  // nil for plain HTTP
	host   string       // host:port
	base   string       // path that all paths are below, mostly ""
	shared *sharedConns // nil by HTTP/1.1

	running atomic.Pointer[recorder] // of the workload under way
}

// NewTarget returns the server that the current context of a kubeconfig file
// names. It does no I/O beyond reading the file.
func NewTarget(kubeconfig string) (*Target, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("bench: kubeconfig: %w", err)
	}
	config.QPS = -1
	server, err := url.Parse(config.Host)
	if err != nil {
		return nil, fmt.Errorf("bench: kubeconfig: server: %w", err)
	}
	t := &Target{config: config, host: server.Host, base: server.Path}
	switch server.Scheme {
	case "http":
		return t.withPort("80"), nil
	case "https":
	default:
		return nil, fmt.Errorf("bench: kubeconfig: server %q is not an http or https URL", config.Host)
	}
	if t.tls, err = rest.TLSConfigFor(config); err != nil {
		return nil, fmt.Errorf("bench: kubeconfig: %w", err)
	}
	if t.tls == nil {
		t.tls = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	t.tls.NextProtos = nil
	if t.tls.ServerName == "" {
		t.tls.ServerName = server.Hostname()
	}
	return t.withPort("443"), nil
}

func (t *Target) withPort(port string) *Target {
	if _, _, err := net.SplitHostPort(t.host); err != nil {
		t.host = net.JoinHostPort(t.host, port)
	}
	return t
}

// credentials returns what the kubeconfig's user adds to each request.
func (t *Target) credentials(ctx context.Context) (http.Header, error) {
	seen := headerCatcher{}
	wrapped, err := rest.HTTPWrappersForConfig(t.config, &seen)
	if err != nil {
		return nil, fmt.Errorf("bench: kubeconfig: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+t.host, nil)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	resp, err := wrapped.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("bench: credentials: %w", err)
	}
	resp.Body.Close()
	return seen.header, nil
}

// headerCatcher keeps the header of a request instead of sending it.
type headerCatcher struct{ header http.Header }

// RoundTrip implements http.RoundTripper.
func (c *headerCatcher) RoundTrip(req *http.Request) (*http.Response, error) {
	c.header = req.Header.Clone()
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: req}, nil
}

// Progress is what the workload under way has done so far.
type Progress struct {
	// Name is the workload's, with what it is doing; "" when none runs.
	Name string
	// Done and Errors count operations, Total is how many there will be, 0 if unknown.
	Done, Errors, Total int
	// Elapsed is the time since the workload began.
	Elapsed time.Duration
	// P50 and P99 are latencies so far.
	P50, P99 time.Duration
}

// Progress may be called at any time.
func (t *Target) Progress() Progress {
	if rec := t.running.Load(); rec != nil {
		return rec.progress()
	}
	return Progress{}
}

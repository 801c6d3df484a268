package relay

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/httpapi/nethttp"
	"github.com/larder-io/larder/internal/invariants"
)

// ProxyConfig is the configuration of a [Proxy]. Upstream is required.
type ProxyConfig struct {
	// Upstream has the address of the upstream, and the relay's credential for it.
	Upstream *rest.Config
	// ClientCAs verifies the client certificates that name users, as the server's authenticator does; nil if none do.
	ClientCAs func() (x509.VerifyOptions, bool)
	// Prefix is the path below which the relay serves the upstream; it may be "".
	Prefix string
}

// Proxy passes requests through to the upstream. It is safe for concurrent use.
type Proxy struct {
	upstream    *url.URL
	prefix      string
	certificate authenticator.Request // nil if client certificates name no users
	client      proxyTransport        // without a credential
	relay       proxyTransport        // with the relay's
}

// proxyTransport sends requests with one credential. A connection over HTTP/2 cannot be upgraded.
type proxyTransport struct{ plain, upgrading http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t proxyTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Header["Upgrade"] != nil {
		return t.upgrading.RoundTrip(req)
	}
	return t.plain.RoundTrip(req)
}

// NewProxy returns a Proxy. It does no I/O.
func NewProxy(config ProxyConfig) (*Proxy, error) {
	upstream := rest.CopyConfig(config.Upstream)
	switch {
	case upstream.Transport != nil || upstream.WrapTransport != nil:
		return nil, errors.New("relay: the upstream's configuration has its own transport, whose credentials are unknown")
	case upstream.Impersonate.UserName != "":
		return nil, errors.New("relay: the credential for the upstream impersonates a user, and cannot impersonate others")
	}
	upstream.DisableCompression = true // bodies are passed on as they are
	upstream.UserAgent = ""            // keep the client's User-Agent
	at, _, err := rest.DefaultServerUrlFor(upstream)
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	p := &Proxy{upstream: at, prefix: config.Prefix}
	if config.ClientCAs != nil {
		p.certificate = x509request.NewDynamic(config.ClientCAs, x509request.CommonNameUserConversion)
	}
	if p.client, err = newProxyTransport(rest.AnonymousClientConfig(upstream)); err != nil {
		return nil, err
	}
	p.relay, err = newProxyTransport(upstream)
	return p, err
}

func newProxyTransport(config *rest.Config) (t proxyTransport, err error) {
	if t.plain, err = TransportFor(config); err != nil {
		return t, err
	}
	config = rest.CopyConfig(config)
	config.NextProtos = []string{"http/1.1"}
	t.upgrading, err = TransportFor(config)
	return t, err
}

// CloseIdle closes unused connections to the upstream.
func (p *Proxy) CloseIdle() {
	for _, t := range []proxyTransport{p.client, p.relay} {
		utilnet.CloseIdleConnectionsFor(t.plain)
		utilnet.CloseIdleConnectionsFor(t.upgrading)
	}
}

// Forward sends x, which is authenticated, to the upstream, and the response to the client.
func (p *Proxy) Forward(x *nethttp.Call) {
	// A server that serves TRACE would return the relay's credential. CONNECT asks for a tunnel.
	if x.Method == http.MethodConnect || x.Method == http.MethodTrace {
		x.Fail(apierrors.NewMethodNotSupported(schema.GroupResource{Group: x.Group, Resource: x.Resource}, x.Method))
		return
	}
	// The relay's credential must not reach other servers below other paths of the same host.
	if base := strings.TrimRight(p.upstream.Path, "/"); !strings.HasPrefix(path.Clean(base+"/"+x.Path)+"/", base+"/") {
		x.Fail(apierrors.NewBadRequest("the path leads out of the upstream"))
		return
	}
	sent := x.CopyHeaders(func(string) bool { return true })
	if !sendable(x.Method, sent) {
		x.Fail(apierrors.NewBadRequest("the request has a method or a header that cannot be passed on"))
		return
	}
	f := &forwarding{upstream: p.upstream, prefix: p.prefix, header: asSent(sent), via: p.client, long: x.LongRunning()}
	if !x.Carrier.Internal() && p.byCertificate(x.Carrier.TLS(), sent) {
		if up := sent.Get("Upgrade"); !mayUpgradeTo(up) {
			x.Fail(apierrors.NewBadRequest(fmt.Sprintf("a connection of the relay cannot be upgraded to %q", up)))
			return
		}
		f.header, f.refused = endToEnd(sent), p.refused
		f.via = impersonate(x.User, impersonatedOnly{p.relay})
	}
	f.header["Audit-Id"] = []string{x.AuditID}
	x.Forward(f)
}

// refused reports whether the upstream refuses the relay's own credential, as a request for its version shows. A 401 may
// also come from a webhook, a pod, a kubelet or an aggregated server.
func (p *Proxy) refused(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, contactInterval) // that of the request may not end
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.upstream.JoinPath("version").String(), nil)
	if err != nil {
		return false
	}
	resp, err := p.relay.RoundTrip(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusUnauthorized
}

// byCertificate reports whether a certificate names the user of a request: if there is one, it comes
// before tokens, unless it is invalid. A client with an invalid certificate and no token is not authenticated.
func (p *Proxy) byCertificate(state *tls.ConnectionState, sent http.Header) bool {
	if p.certificate == nil || state == nil || len(state.PeerCertificates) == 0 {
		return false
	}
	if !hasToken(sent) {
		return true
	}
	_, ok, err := p.certificate.AuthenticateRequest(&http.Request{TLS: state})
	return ok && err == nil
}

// mayUpgradeTo reports whether the relay's connection may be upgraded to a protocol. Other protocols, such as h2c,
// could send further requests over a connection that the relay's certificate has authenticated.
func mayUpgradeTo(protocol string) bool {
	return protocol == "" || strings.EqualFold(protocol, "websocket") || strings.EqualFold(protocol, "SPDY/3.1")
}

// sendable reports whether net/http sends a request with that method and header.
func sendable(method string, header http.Header) bool {
	valid := httpguts.ValidHeaderFieldName(method) // both are tokens
	for name, values := range header {
		valid = valid && httpguts.ValidHeaderFieldName(name) && !slices.ContainsFunc(values, func(v string) bool { return !httpguts.ValidHeaderFieldValue(v) })
	}
	return valid
}

// forwarding passes one request through.
type forwarding struct {
	upstream *url.URL
	prefix   string
	header   http.Header
	via      http.RoundTripper
	refused  func(context.Context) bool // of the Proxy, if the relay's credential is sent
	long     bool                       // the response is a watch, a log or the like
	wrote    atomic.Bool                // the upstream may have the request
}

// flushDelay is how long the beginning of a response waits for the rest, so that most go out at once.
const flushDelay = 20 * time.Millisecond

// bufferPool implements httputil.BufferPool.
type bufferPool struct{ pool sync.Pool }

const bufferSize = 32 << 10 // as without a pool

// buffers has the buffers through which the bodies of responses are copied. Without it each request allocates one.
var buffers = bufferPool{sync.Pool{New: func() any { return new([bufferSize]byte) }}}

func (b *bufferPool) Get() []byte { return b.pool.Get().(*[bufferSize]byte)[:] }

func (b *bufferPool) Put(buffer []byte) {
	if invariants.Enabled {
		invariants.Overwrite(buffer)
	}
	b.pool.Put((*[bufferSize]byte)(buffer))
}

// maxRepeated is the size up to which the transport can send a body again, if the upstream has closed the
// connection without reading it.
const maxRepeated = 64 << 10

func (f *forwarding) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	utilflowcontrol.RequestDelegated(req.Context()) // the upstream counts a watch
	req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{WroteHeaders: func() { f.wrote.Store(true) }}))
	if 0 < req.ContentLength && req.ContentLength <= maxRepeated {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			f.fail(w, req, err)
			return
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	}
	quiet := log.New(io.Discard, "", 0) // the client sees that a response is cut
	proxy := httputil.ReverseProxy{Rewrite: f.rewrite, Transport: f.via, BufferPool: &buffers, ErrorHandler: f.fail, ErrorLog: quiet}
	proxy.ModifyResponse = func(resp *http.Response) error {
		if f.refused != nil && resp.StatusCode == http.StatusUnauthorized && f.refused(req.Context()) {
			return errNotAccepted
		}
		maps.DeleteFunc(w.Header(), func(name string, _ []string) bool { return resp.Header[name] != nil })
		f.rewriteLocation(resp.Header)
		if resp.ContentLength < 0 && !f.long {
			resp.ContentLength, proxy.FlushInterval = 0, flushDelay // with -1 it would flush each read; nothing else uses the length
		}
		if len(resp.Trailer) > 0 {
			resp.Header.Del("Content-Length") // HTTP/1.1 has trailers only in chunked bodies
		}
		return nil
	}
	proxy.ServeHTTP(w, req)
}

// rewriteLocation puts the path in the Location of a response below the prefix. Cookies of one upstream would be sent to
// others.
func (f *forwarding) rewriteLocation(header http.Header) {
	if at, err := url.Parse(header.Get("Location")); err == nil && strings.HasPrefix(at.Path, "/") && (at.Host == "" || at.Host == f.upstream.Host) {
		at.Scheme, at.Host, at.User = "", "", nil
		rest, below := strings.CutPrefix(at.String(), strings.TrimRight(f.upstream.Path, "/"))
		if below && (rest == "" || strings.Contains("/?#", rest[:1])) {
			header.Set("Location", f.prefix+rest)
		}
	}
	if f.prefix != "" {
		header.Del("Set-Cookie")
	}
}

// rewrite addresses the request to the upstream. It sends f's header, plus the fields that the ReverseProxy has set
// for the connection to the upstream.
func (f *forwarding) rewrite(r *httputil.ProxyRequest) {
	made := r.Out.Header
	r.Out.Header = f.header.Clone()
	for _, name := range [...]string{"Connection", "Upgrade", "Te"} {
		if values := made[name]; values != nil {
			r.Out.Header[name] = values
		}
	}
	r.SetURL(f.upstream)
	r.SetXForwarded()
}

// errNotAccepted says that the upstream refuses the relay's credential. The client's is valid.
var errNotAccepted = errors.New("the upstream API server does not accept the relay's own credential")

// fail responds to a request that the upstream did not respond to. Clients retry a request if the response has
// Retry-After. So the response to a write that the upstream may have executed does not have it.
func (f *forwarding) fail(w http.ResponseWriter, req *http.Request, err error) {
	status := apierrors.NewServiceUnavailable("the upstream API server does not respond")
	if err == errNotAccepted { // it has done nothing
		status = apierrors.NewServiceUnavailable(err.Error())
	}
	var known *apierrors.StatusError
	switch {
	case errors.As(err, &known): // of the client's body
		status = known
	case errors.Is(err, errIdentity):
		status = apierrors.NewForbidden(schema.GroupResource{}, "", err)
	case errors.Is(context.Cause(req.Context()), context.DeadlineExceeded):
		status = apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
	case err == errNotAccepted || !f.wrote.Load() || req.Method == http.MethodGet || req.Method == http.MethodHead || req.Method == http.MethodOptions:
		status.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
		w.Header().Set("Retry-After", "1")
	}
	responsewriters.WriteRawJSON(int(status.ErrStatus.Code), responsewriters.ErrorToAPIStatus(status), w)
}

package relay

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/http1"
	"github.com/larder-io/larder/httpapi/identity"
	"github.com/larder-io/larder/httpapi/nethttp"
	"github.com/larder-io/larder/httpapi/streams"
	"github.com/larder-io/larder/internal/auth"
	"github.com/larder-io/larder/internal/proctest/testcert"
	"github.com/larder-io/larder/kv/kvtest"
)

const (
	annsToken   = "token-of-ann"
	relaysToken = "token-of-the-relay"
)

// upstream stands in for a kube-apiserver. It sends the requests that it gets to received.
type upstream struct {
	*httptest.Server
	authority *testcert.Authority // of client certificates
	received  chan received
}

// received is a request that the upstream got.
type received struct {
	method, uri, proto string
	header             http.Header
	certificate        string // common name of the client's certificate
}

// newUpstream serves h, which may be nil, over HTTP/1.1 and HTTP/2.
func newUpstream(t *testing.T, h http.HandlerFunc) *upstream {
	t.Helper()
	u := &upstream{authority: testcert.New(t, "upstream's clients"), received: make(chan received, 100)}
	u.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		request := received{method: req.Method, uri: req.RequestURI, proto: req.Proto, header: req.Header.Clone()}
		if len(req.TLS.PeerCertificates) > 0 {
			request.certificate = req.TLS.PeerCertificates[0].Subject.CommonName
		}
		u.received <- request
		if h != nil {
			h(w, req)
		}
	}))
	u.EnableHTTP2 = true
	u.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	u.StartTLS()
	t.Cleanup(u.Close)
	return u
}

// config returns the relay's configuration for u, whose credential is a token.
func (u *upstream) config() *rest.Config {
	config := u.anonymousConfig()
	config.BearerToken = relaysToken
	return config
}

func (u *upstream) anonymousConfig() *rest.Config {
	ca := (&testcert.Authority{Cert: u.Certificate()}).PEM()
	return &rest.Config{Host: u.URL, TLSClientConfig: rest.TLSClientConfig{CAData: []byte(ca)}}
}

// server is a relay without caches. It authenticates and impersonates as package httpapi does.
type server struct {
	streams   *streams.Streams
	addr      string
	client    *tls.Config
	authority *testcert.Authority // of client certificates
	rights    *auth.Auth
	proxy     *Proxy
}

// serve runs a relay until the test ends. config is for its requests to the upstream.
func serve(t *testing.T, config *rest.Config) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serving, pool := testcert.Loopback(t)
	serving.ClientAuth = tls.RequestClientCert
	s := &server{streams: streams.New(), addr: l.Addr().String(), client: &tls.Config{RootCAs: pool}, authority: testcert.New(t, "relay's clients")}
	s.loadRights(t)
	if s.proxy, err = NewProxy(ProxyConfig{Upstream: config, ClientCAs: s.rights.ClientCA.VerifyOptions}); err != nil {
		t.Fatal(err)
	}
	headers := identity.NewHeaders(nil)
	handlers := nethttp.New(nethttp.Config{
		Streams: s.streams, Join: func(*exchange.Exchange) streams.Right { return nil }, Credential: headers.Has,
	})
	base, cancel := context.WithCancel(context.Background())
	chain := &chain{
		server: s, handlers: handlers, base: base, impersonation: identity.NewImpersonation(authorizerfactory.NewAlwaysAllowAuthorizer()),
		identity: &identity.Authentication{Authenticator: s.rights.Authenticator, Generation: s.rights.Generation, Digester: identity.NewDigester(), Access: apimetrics.NewAccess()},
	}
	draining := make(chan struct{})
	listening := http1.New(http1.Config{
		Listener: l, TLS: serving, Handler: chain.handle, Draining: draining, HTTP2: true,
		Limits: http1.Limits{MaxHeaderBytes: 1 << 20, MaxBodyBytes: 1 << 20}, BodyTimeout: time.Minute,
	})
	ended := make(chan error, 1)
	go func() { ended <- listening.ServeNetwork() }()
	t.Cleanup(func() {
		close(draining)
		listening.StopAccepting()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		listening.Network.Close()
		s.streams.End()
		if err := listening.Network.Drain(context.Background()); err != nil {
			t.Error(err)
		}
		cancel()
		listening.Abort()
		s.streams.Abort()
		s.streams.Wait(context.Background())
		handlers.Wait()
		s.proxy.CloseIdle()
	})
	return s
}

// loadRights makes s accept ann's token, client certificates of its CA, and anonymous clients.
func (s *server) loadRights(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	authentication := options.NewBuiltInAuthenticationOptions().WithAnonymous().WithClientCert().WithTokenFile()
	authentication.ClientCert.ClientCA, authentication.TokenFile.TokenFile = filepath.Join(dir, "ca.crt"), filepath.Join(dir, "tokens")
	for file, text := range map[string]string{authentication.ClientCert.ClientCA: s.authority.PEM(), authentication.TokenFile.TokenFile: annsToken + ",ann,1\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	authorization := options.NewBuiltInAuthorizationOptions()
	authorization.Modes = []string{"AlwaysDeny"}
	rights, err := auth.Load(t.Context(), auth.Config{Authentication: authentication, Authorization: authorization})
	if err != nil {
		t.Fatal(err)
	}
	s.rights = rights
	kvtest.RunUntilEnd(t, rights.Run)
}

// chain passes requests to the proxy, like the chain of package httpapi.
type chain struct {
	server        *server
	handlers      *nethttp.Handlers
	base          context.Context
	identity      *identity.Authentication
	impersonation *identity.Impersonation
}

func (c *chain) handle(carrier exchange.Carrier, received time.Time) *exchange.Exchange {
	x := new(nethttp.Call)
	c.handlers.Init(x, carrier, received, c.base)
	x.AuditID = cmp.Or(string(x.Peek("Audit-Id")), "made-by-the-relay")
	x.CommonHeaders()
	facts := carrier.Inspect()
	if facts.Code != 0 {
		x.Text(facts.Code, facts.Refusal)
		x.Closing = true
		return &x.Exchange
	}
	if err := x.Parse(string(carrier.Method()), string(carrier.Target())); err != nil {
		x.Text(http.StatusBadRequest, "400 Bad Request")
		return &x.Exchange
	}
	asked, _ := time.ParseDuration(x.Query.Get("timeout"))
	if x.PrepareBy = received.Add(cmp.Or(asked, time.Minute)); !x.LongRunning() {
		x.Deadline = x.PrepareBy
	}
	if c.identity.Authenticate(x, facts.OtherCredentials) != nil {
		x.Fail(apierrors.NewUnauthorized("Unauthorized"))
		return &x.Exchange
	}
	if facts.Impersonates && !c.impersonate(x) {
		return &x.Exchange
	}
	c.server.proxy.Forward(x)
	return &x.Exchange
}

func (c *chain) impersonate(x *nethttp.Call) bool {
	w, ctx := nethttp.NewRecorder(), exchange.Context(x.Base(), x.RequestInfo(), x.User, x.Received)
	as, _ := c.impersonation.Admit(w, x.HTTP().WithContext(ctx))
	if as == nil {
		w.SendTo(&x.Response)
		return false
	}
	x.User, _ = apirequest.UserFrom(as.Context())
	x.Replace(as)
	return true
}

// tlsFor returns the TLS configuration of a client whose certificate names a user; name "" means no certificate.
func (s *server) tlsFor(t *testing.T, name string, groups ...string) *tls.Config {
	config := s.client.Clone()
	if name != "" {
		config.Certificates = []tls.Certificate{s.authority.Sign(t, name, groups, nil)}
	}
	return config
}

// newTransport returns a client's transport, over HTTP/2 if h2.
func newTransport(t *testing.T, config *tls.Config, h2 bool) *http.Transport {
	tr := &http.Transport{TLSClientConfig: config, DisableCompression: true, ForceAttemptHTTP2: h2}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// send sends a request and returns the response, whose body the caller closes.
func send(t *testing.T, tr http.RoundTripper, req *http.Request) *http.Response {
	t.Helper()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatalf("%s: %v", req.URL.Path, err)
	}
	return resp
}

// tlsOfUnknownCA returns the TLS configuration of a client whose certificate is from a CA that s does not trust.
func (s *server) tlsOfUnknownCA(t *testing.T) *tls.Config {
	config := s.client.Clone()
	config.Certificates = []tls.Certificate{testcert.New(t, "unknown").Sign(t, "root", []string{"system:masters"}, nil)}
	return config
}

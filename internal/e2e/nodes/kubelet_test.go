package nodes

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/proxy"
	translator "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/larder-io/larder/internal/proctest/testcert"
)

// kubelet is a server that authorizes its clients and runs processes, as a node's kubelet.
type kubelet struct {
	server   *httptest.Server
	runtime  *httptest.Server // serves streams without TLS, as a container runtime
	port     int
	dir      string // the working directory of processes
	declares bool   // the node declares that the kubelet serves WebSockets: the feature gate ExtendWebSocketsToKubelet

	running sync.WaitGroup // handlers
	ended   context.Context

	mu         sync.Mutex
	conns      map[net.Conn]struct{} // guarded by mu: open
	streams    int                   // guarded by mu: being served
	received   []string              // guarded by mu: method, path, protocol and client of each request
	containers map[string]*container // guarded by mu: by namespace/pod/container
}

// pki has the CAs of a cluster.
type pki struct {
	kubelets, servers *testcert.Authority // sign the certificates of kubelets and of API servers
}

func newPKI(t testing.TB) *pki {
	return &pki{kubelets: testcert.New(t, "kubelets"), servers: testcert.New(t, "servers")}
}

// serving returns a kubelet's serving certificate for addresses of this machine.
func (p *pki) serving(t testing.TB, names ...string) tls.Certificate {
	return p.kubelets.Sign(t, "system:node:n", nil, func(c *x509.Certificate) {
		c.IPAddresses, c.DNSNames = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, append(names, "localhost")
		if ip := outward(); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		}
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	})
}

// outward returns an address of this machine that is neither loopback nor link-local, so that proxies may dial it; nil
// if there is none.
func outward() net.IP {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.To4()
		}
	}
	return nil
}

func needOutward(t testing.TB) string {
	t.Helper()
	ip := outward()
	if ip == nil {
		t.Skip("this machine has only loopback addresses, to which API servers do not proxy")
	}
	return ip.String()
}

// listen listens on all addresses, so that proxies can reach it, too.
func listen(t testing.TB) (net.Listener, int) {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	return l, l.Addr().(*net.TCPAddr).Port
}

func newKubelet(t testing.TB, p *pki, edit func(*kubelet)) *kubelet {
	t.Helper()
	ended, end := context.WithCancel(context.Background())
	k := &kubelet{dir: t.TempDir(), ended: ended, conns: make(map[net.Conn]struct{}), containers: make(map[string]*container)}
	if edit != nil {
		edit(k)
	}
	k.server, k.runtime = httptest.NewUnstartedServer(k.handler(true)), httptest.NewUnstartedServer(k.handler(false))
	k.server.Listener.Close()
	k.server.Listener, k.port = listen(t)
	clients := x509.NewCertPool()
	clients.AddCert(p.servers.Cert)
	k.server.TLS = &tls.Config{Certificates: []tls.Certificate{p.serving(t)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients}
	for _, s := range []*httptest.Server{k.server, k.runtime} {
		quiet(s)
		s.Config.ConnState = k.track
	}
	k.server.StartTLS()
	k.runtime.Start()
	t.Cleanup(func() {
		end()
		k.server.CloseClientConnections()
		k.mu.Lock()
		for c := range k.conns {
			c.Close()
		}
		all := k.containers
		k.mu.Unlock()
		k.running.Wait()
		for _, c := range all {
			c.stop()
		}
		k.server.Close()
		k.runtime.Close()
	})
	return k
}

// track records the open connections. A connection that a handler has taken over is recorded until the handler ends.
func (k *kubelet) track(c net.Conn, state http.ConnState) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch state {
	case http.StateNew, http.StateHijacked:
		k.conns[c] = struct{}{}
	case http.StateClosed:
		delete(k.conns, c)
	}
}

// handler serves the part of kubernetes pkg/kubelet/server that the tests need.
func (k *kubelet) handler(records bool) http.Handler {
	mux := http.NewServeMux()
	for _, uid := range []string{"", "/{uid}"} {
		mux.HandleFunc("/exec/{ns}/{pod}"+uid+"/{container}", k.exec)
		mux.HandleFunc("/attach/{ns}/{pod}"+uid+"/{container}", k.attach)
		mux.HandleFunc("/portForward/{ns}/{pod}"+uid, k.portForward)
	}
	mux.HandleFunc("GET /containerLogs/{ns}/{pod}/{container}", k.logs)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) {
		fmt.Fprintf(w, "%s %s as %s\n", req.Method, req.URL.RequestURI(), req.TLS.PeerCertificates[0].Subject.CommonName)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		k.running.Add(1)
		defer k.running.Done()
		if records {
			k.mu.Lock()
			k.received = append(k.received, strings.TrimSpace(fmt.Sprintf("%s %s %s", req.Method, req.URL.RequestURI(), strings.ToLower(req.Header.Get("Upgrade")))))
			k.streams++
			k.mu.Unlock()
			defer func() {
				k.mu.Lock()
				defer k.mu.Unlock()
				k.streams--
			}()
		}
		mux.ServeHTTP(w, req)
	})
}

// serving returns the number of requests that are being served.
func (k *kubelet) serving() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.streams
}

// takeRequests returns the requests received so far, and clears the list.
func (k *kubelet) takeRequests() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	received := k.received
	k.received = nil
	return received
}

const (
	idle     = 4 * time.Hour
	creation = 30 * time.Second // one test waits for this timeout, because its client opens no stream
)

func (k *kubelet) key(req *http.Request) string {
	return req.PathValue("ns") + "/" + req.PathValue("pod") + "/" + req.PathValue("container")
}

// found returns the container of a request. If there is none, it responds as a kubelet does and returns nil.
func (k *kubelet) found(w http.ResponseWriter, req *http.Request) *container {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.containers[k.key(req)]
	if c == nil {
		http.Error(w, fmt.Sprintf("container %q not found in pod %q", req.PathValue("container"), req.PathValue("pod")), http.StatusNotFound)
	}
	return c
}

// target returns the container and the streams of an exec or attach request. If it had to send an error, the container
// is nil.
func (k *kubelet) target(w http.ResponseWriter, req *http.Request) (*container, *remotecommand.Options) {
	options, err := remotecommand.NewOptions(req)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return nil, nil
	}
	c := k.found(w, req)
	if c == nil || k.translate(w, req, options) {
		return nil, nil
	}
	return c, options
}

func (k *kubelet) exec(w http.ResponseWriter, req *http.Request) {
	c, options := k.target(w, req)
	if c == nil {
		return
	}
	ctx, cancel := k.context(req)
	defer cancel()
	remotecommand.ServeExec(w, req.WithContext(ctx), c, "", "", "", req.URL.Query()["command"], options, idle, creation, remotecommand.SupportedStreamingProtocols)
}

func (k *kubelet) attach(w http.ResponseWriter, req *http.Request) {
	c, options := k.target(w, req)
	if c == nil {
		return
	}
	ctx, cancel := k.context(req)
	defer cancel()
	remotecommand.ServeAttach(w, req.WithContext(ctx), c, "", "", "", options, idle, creation, remotecommand.SupportedStreamingProtocols)
}

// context returns a context that ends with the request and with the kubelet.
func (k *kubelet) context(req *http.Request) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(req.Context())
	stop := context.AfterFunc(k.ended, cancel)
	return ctx, func() { stop(); cancel() }
}

// translate serves streams itself, without the runtime, if the kubelet declares that it serves WebSockets.
func (k *kubelet) translate(w http.ResponseWriter, req *http.Request, o *remotecommand.Options) bool {
	if !k.declares || req.TLS == nil || !wsstream.IsWebSocketRequestWithStreamCloseProtocol(req) {
		return false
	}
	translator.NewStreamTranslatorHandler(k.below(req), nil, 0, translator.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY}).ServeHTTP(w, req)
	return true
}

// below returns the URL at which the runtime serves the request.
func (k *kubelet) below(req *http.Request) *url.URL {
	return &url.URL{Scheme: "http", Host: k.runtime.Listener.Addr().String(), Path: req.URL.Path, RawQuery: req.URL.RawQuery}
}

func (k *kubelet) portForward(w http.ResponseWriter, req *http.Request) {
	if k.declares && req.TLS != nil && wsstream.IsWebSocketRequestWithTunnelingProtocol(req) {
		translator.NewTunnelingHandler(proxy.NewUpgradeAwareHandler(k.below(req), nil, false, true, responder{})).ServeHTTP(w, req)
		return
	}
	options, err := portforward.NewV4Options(req)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	portforward.ServePortForward(w, req, forwarder{k.ended}, req.PathValue("pod"), "", options, idle, creation, []string{portforward.ProtocolV1Name})
}

// forwarder connects to ports of this machine instead of a pod's.
type forwarder struct{ ended context.Context }

// PortForward implements portforward.PortForwarder. It forwards the end of one direction.
func (f forwarder) PortForward(ctx context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return fmt.Errorf("failed to connect to port %d: %w", port, err)
	}
	stop := context.AfterFunc(f.ended, func() { conn.Close() })
	defer stop()
	var wait sync.WaitGroup
	wait.Go(func() {
		_, _ = io.Copy(conn, stream)
		_ = conn.(*net.TCPConn).CloseWrite()
	})
	_, err = io.Copy(stream, conn)
	stream.Close()
	conn.Close()
	wait.Wait()
	return err
}

// responder sends errors of requests that cannot be proxied.
type responder struct{}

// Error implements proxy.ErrorResponder.
func (responder) Error(w http.ResponseWriter, _ *http.Request, err error) {
	http.Error(w, err.Error(), http.StatusInternalServerError)
}

// quiet makes a server discard its errors about clients.
func quiet(s *httptest.Server) { s.Config.ErrorLog = log.New(io.Discard, "", 0) }

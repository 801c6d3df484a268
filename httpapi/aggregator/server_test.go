package aggregator_test

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
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/request"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	clientset "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"github.com/larder-io/larder/httpapi/aggregator"
	"github.com/larder-io/larder/internal/admission"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/proctest/testcert"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/kv/kvtest"
)

// server is an Aggregator over a registry. It authenticates every client as ann.
type server struct {
	*registrytest.Server
	aggregator *aggregator.Aggregator
	discovery  aggregated.ResourceManager
	registered clientset.Interface
	url        string
}

// newServer runs a server until the test ends, and returns when it is ready.
func newServer(t *testing.T, change func(*aggregator.Config)) *server {
	t.Helper()
	s, followed := newStopped(t, change)
	s.Start(t)
	kvtest.RunUntilEnd(t, func(ctx context.Context) error {
		followed.Start(ctx.Done())
		<-ctx.Done()
		followed.Shutdown()
		return nil
	})
	kvtest.RunUntilEnd(t, s.aggregator.Run)
	must(t, s.aggregator.WaitReady(t.Context()))
	front := httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(front.Close)
	s.url = front.URL
	return s
}

// newStopped returns a server that is not started, and the informers of CRDs.
func newStopped(t *testing.T, change func(*aggregator.Config)) (*server, apiextensions.SharedInformerFactory) {
	t.Helper()
	s := &server{Server: registrytest.New(t, nil), discovery: aggregated.NewResourceManager("apis")}
	clients, err := apiextensionsclient.NewForConfig(s.ClientConfig)
	must(t, err)
	followed := apiextensions.NewSharedInformerFactory(clients, 0)
	config := aggregator.Config{
		Registry: s.Registry, ClientConfig: s.ClientConfig, Client: s.Client,
		Services: s.Informers.Core().V1().Services(), CRDs: followed.Apiextensions().V1().CustomResourceDefinitions(),
		Discovery: s.discovery, Resolver: admission.NewServiceResolver(s.Registry, false),
	}
	config.Services.Informer()
	config.CRDs.Informer()
	if change != nil {
		change(&config)
	}
	s.aggregator, err = aggregator.New(config)
	must(t, err)
	s.registered, err = clientset.NewForConfig(s.ClientConfig)
	must(t, err)
	return s, followed
}

// serve routes requests of ann as package httpapi does.
func (s *server) serve(w http.ResponseWriter, req *http.Request) {
	ctx := request.WithUser(req.Context(), &user.DefaultInfo{
		Name: "ann", UID: "u-1", Groups: []string{"dev", "ops"}, Extra: map[string][]string{"example.com/scopes": {"all"}},
	})
	req = req.WithContext(request.WithRequestInfo(ctx, &request.RequestInfo{Path: req.URL.Path, Verb: "get"}))
	path := req.URL.Path
	switch h := s.aggregator.Remote(path); {
	case h != nil:
		h.ServeHTTP(w, req)
	case path == "/apis" && strings.Contains(req.Header.Get("Accept"), "APIGroupDiscoveryList"):
		s.discovery.ServeHTTP(w, req)
	case path == "/apis":
		s.aggregator.ServeGroups(w, req)
	case strings.HasPrefix(path, "/openapi/v3/"):
		s.aggregator.ServeOpenAPIV3(w, req)
	default:
		if h := s.aggregator.Group(path); h != nil {
			h.ServeHTTP(w, req)
			return
		}
		http.NotFound(w, req)
	}
}

// get sends a GET and does not follow redirects. header has names and values in turn.
func (s *server) get(t *testing.T, path string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+path, nil)
	must(t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp, string(body)
}

// awaitResponse waits until a GET of path gets a code, and a body that begins with body.
func (s *server) awaitResponse(t *testing.T, path string, code int, body string) {
	t.Helper()
	proctest.Eventually(t, fmt.Sprintf("GET %s gets %d", path, code), func() error {
		if resp, got := s.get(t, path); resp.StatusCode != code || !strings.HasPrefix(got, body) {
			return fmt.Errorf("%d %q", resp.StatusCode, got)
		}
		return nil
	})
}

// register creates an APIService of a version of example.com. Its server is r; a nil r makes it local. change, if not
// nil, changes the APIService first.
func (s *server) register(t *testing.T, version string, r *remoteServer, change func(*apiregistrationv1.APIService)) {
	t.Helper()
	o := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: version + ".example.com"},
		Spec:       apiregistrationv1.APIServiceSpec{Group: "example.com", Version: version, GroupPriorityMinimum: 2000, VersionPriority: 10},
	}
	if r != nil {
		port := r.port()
		o.Spec.Service = &apiregistrationv1.ServiceReference{Namespace: "default", Name: "remote", Port: &port}
		o.Spec.CABundle = []byte(r.authority.PEM())
	}
	if change != nil {
		change(o)
	}
	_, err := s.registered.ApiregistrationV1().APIServices().Create(t.Context(), o, metav1.CreateOptions{})
	must(t, err)
}

// edit changes the APIService of a version of example.com.
func (s *server) edit(t *testing.T, version string, change func(*apiregistrationv1.APIServiceSpec)) {
	t.Helper()
	client := s.registered.ApiregistrationV1().APIServices()
	proctest.Eventually(t, "the APIService is updated", func() error {
		o, err := client.Get(t.Context(), version+".example.com", metav1.GetOptions{})
		must(t, err)
		change(&o.Spec)
		_, err = client.Update(t.Context(), o, metav1.UpdateOptions{})
		return err
	})
}

func (s *server) remove(t *testing.T, version string) {
	t.Helper()
	must(t, s.registered.ApiregistrationV1().APIServices().Delete(t.Context(), version+".example.com", metav1.DeleteOptions{}))
}

// service creates the Service of remote servers, with the external name localhost.
func (s *server) service(t *testing.T) {
	t.Helper()
	_, err := s.Client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "remote"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}, metav1.CreateOptions{})
	must(t, err)
}

// awaitCondition waits for a condition Available of the APIService of a version of example.com.
func (s *server) awaitCondition(t *testing.T, version string, status apiregistrationv1.ConditionStatus, reason, message string) {
	t.Helper()
	proctest.Eventually(t, fmt.Sprintf("%s is available: %s, %s", version, status, reason), func() error {
		o, err := s.registered.ApiregistrationV1().APIServices().Get(t.Context(), version+".example.com", metav1.GetOptions{})
		if err != nil {
			return err
		}
		c := helper.GetAPIServiceConditionByType(o, apiregistrationv1.Available)
		if c == nil || c.Status != status || c.Reason != reason || !strings.Contains(c.Message, message) {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
}

// remoteServer is an API server over TLS, with a certificate for the Service remote.
type remoteServer struct {
	*httptest.Server
	authority *testcert.Authority

	mu    sync.Mutex
	down  bool
	asked http.Header // of the last request by ann
	shown string      // common name of the last client certificate
}

func newRemoteServer(t *testing.T) *remoteServer {
	t.Helper()
	r := &remoteServer{authority: testcert.New(t, "authority of "+t.Name())}
	r.Server = httptest.NewUnstartedServer(r)
	r.Config.ErrorLog = log.New(io.Discard, "", 0) // of clients that do not trust the certificate
	r.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, Certificates: []tls.Certificate{
		r.authority.Sign(t, "remote", nil, func(c *x509.Certificate) {
			c.DNSNames, c.ExtKeyUsage = []string{"remote.default.svc"}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		}),
	}}
	r.StartTLS()
	t.Cleanup(func() {
		r.CloseClientConnections()
		r.Close()
	})
	return r
}

func (r *remoteServer) port() int32 { return int32(r.Listener.Addr().(*net.TCPAddr).Port) }

func (r *remoteServer) setDown(down bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = down
}

// last returns the header of the last request by ann, and the common name of the last client certificate.
func (r *remoteServer) last() (header http.Header, shown string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked, r.shown
}

// ServeHTTP implements http.Handler.
func (r *remoteServer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	down := r.down
	r.shown = ""
	for _, c := range req.TLS.PeerCertificates {
		r.shown = c.Subject.CommonName
	}
	if req.Header.Get("X-Remote-User") == "ann" {
		r.asked = req.Header
	}
	r.mu.Unlock()
	if down {
		http.Error(w, "down", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	path := req.URL.Path
	switch version, rest, _ := strings.Cut(strings.TrimPrefix(path, "/apis/example.com/"), "/"); {
	case path == "/openapi/v2":
		const things = `"/apis/example.com/%s/things":{"get":{"responses":{"200":{"description":"OK","schema":{"$ref":"#/definitions/Thing"}}}}}`
		fmt.Fprintf(w, `{"swagger":"2.0","info":{"title":"t","version":"1"},"paths":{`+things+`,`+things+`,"/elsewhere":{}},"definitions":{"Thing":{"description":"of %d"}}}`, "v1", "v2", r.port())
	case path == "/openapi/v3":
		fmt.Fprint(w, `{"paths":{"apis/example.com/v1":{"serverRelativeURL":"/openapi/v3/apis/example.com/v1?hash=A"}}}`)
	case path == "/openapi/v3/apis/example.com/v1":
		fmt.Fprint(w, `{"openapi":"3.0.0","info":{"title":"t","version":"1"}}`)
	case !strings.HasPrefix(path, "/apis/example.com/"):
		http.NotFound(w, req)
	case rest == "":
		fmt.Fprintf(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"example.com/%s","resources":[{"name":"things","singularName":"thing","namespaced":true,"kind":"Thing","verbs":["get"]}]}`, version)
	case rest == "redirect":
		http.Redirect(w, req, "/elsewhere", http.StatusFound)
	default:
		fmt.Fprintf(w, `{"path":%q,"query":%q}`, path, req.URL.RawQuery)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

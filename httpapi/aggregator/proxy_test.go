package aggregator

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/ptr"
)

// TestHopByHopHeadersAreNotForwarded checks that fields that a client lists in Connection do not reach the remote
// server, and that listing the user's fields does not remove them.
func TestHopByHopHeadersAreNotForwarded(t *testing.T) {
	heard := make(chan http.Header, 1)
	remote := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		heard <- req.Header
		http.Error(w, "no", http.StatusTeapot)
	}))
	defer remote.Close()
	at, err := url.Parse(remote.URL + "/x")
	if err != nil {
		t.Fatal(err)
	}
	next := remote.Client().Transport
	p := &proxy{aggregator: new(Aggregator)}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		p.forward(w, req, at, next, &user.DefaultInfo{Name: "ann", Groups: []string{"dev"}})
	}))
	defer front.Close()

	c, err := net.Dial("tcp", front.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(c, "GET /x HTTP/1.1\r\nHost: h\r\nConnection: X-Remote-User, Upgrade\r\nconnection: x-secret\r\nUpgrade: test\r\n"+
		"X-Secret: s\r\nX-Open: o\r\nKeep-Alive: 5\r\nTe: trailers\r\nProxy-Authorization: Basic x\r\nX-Remote-User: root\r\n\r\n")
	if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != http.StatusTeapot {
		t.Fatal(resp, err)
	}
	got := <-heard
	for name, want := range map[string]string{
		"Connection": "Upgrade", "Upgrade": "test", "X-Open": "o", "X-Remote-User": "ann", "X-Remote-Group": "dev",
		"X-Secret": "", "Keep-Alive": "", "Te": "", "Proxy-Authorization": "",
	} {
		if values := got.Values(name); len(values) > 1 || got.Get(name) != want {
			t.Errorf("%s: %q, want %q", name, values, want)
		}
	}
}

// TestUpgradesEndWithTheirRequest checks that an upgrade ends when its client leaves, even if the remote server does
// not respond.
func TestUpgradesEndWithTheirRequest(t *testing.T) {
	remote, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer remote.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req := httptest.NewRequestWithContext(ctx, http.MethodGet, "/x", nil)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "test")
	p, w, ended := &proxy{aggregator: new(Aggregator)}, httptest.NewRecorder(), make(chan struct{})
	go func() {
		defer close(ended)
		at := &url.URL{Scheme: "http", Host: remote.Addr().String(), Path: "/x"}
		p.forward(w, req, at, &http.Transport{}, &user.DefaultInfo{Name: "ann"})
	}()
	c, err := remote.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
		t.Fatal(err)
	}
	cancel()
	<-ended
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("upgrade whose context ended: %d %s, want 503", w.Code, w.Body)
	}
}

// TestRequestsThatAreNotForwarded checks that requests that cannot be forwarded get upstream's errors, in upstream's
// order.
func TestRequestsThatAreNotForwarded(t *testing.T) {
	ann := request.WithUser(t.Context(), &user.DefaultInfo{Name: "ann"})
	apiService := func(available apiregistrationv1.ConditionStatus, authority string) *apiregistrationv1.APIService {
		return &apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: "v1.example.com"},
			Spec: apiregistrationv1.APIServiceSpec{
				Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "remote", Port: ptr.To[int32](443)}, CABundle: []byte(authority),
			},
			Status: apiregistrationv1.APIServiceStatus{Conditions: []apiregistrationv1.APIServiceCondition{{Type: apiregistrationv1.Available, Status: available}}},
		}
	}
	for _, c := range []struct {
		name       string
		ctx        context.Context
		apiService *apiregistrationv1.APIService
		code       int
		body       string
	}{
		{"not available", t.Context(), apiService(apiregistrationv1.ConditionFalse, "no certificate"), http.StatusServiceUnavailable, "service unavailable\n"},
		{"not known to be available", ann, apiService(apiregistrationv1.ConditionUnknown, ""), http.StatusServiceUnavailable, "service unavailable\n"},
		{"invalid CA", t.Context(), apiService(apiregistrationv1.ConditionTrue, "no certificate"), http.StatusInternalServerError, "unable to load root certificates: unable to parse bytes as PEM block\n"},
		{"no user", t.Context(), apiService(apiregistrationv1.ConditionTrue, ""), http.StatusInternalServerError, "missing user\n"},
		{"no service", ann, apiService(apiregistrationv1.ConditionTrue, ""), http.StatusServiceUnavailable, "service unavailable\n"},
	} {
		p := &proxy{aggregator: &Aggregator{resolver: noServices{}}}
		p.update(c.apiService)
		w := httptest.NewRecorder()
		p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/apis/example.com/v1/things", nil).WithContext(c.ctx))
		if w.Code != c.code || w.Body.String() != c.body {
			t.Errorf("%s: %d %q, want %d %q", c.name, w.Code, w.Body, c.code, c.body)
		}
	}
}

// noServices is a resolver without services.
type noServices struct{}

// ResolveEndpoint implements upstream.ServiceResolver.
func (noServices) ResolveEndpoint(namespace, name string, _ int32) (*url.URL, error) {
	return nil, fmt.Errorf("no service %s/%s", namespace, name)
}

// TestPathsBelongToAPIServices checks that a path belongs to the APIService of its group and version. The core group
// has one; paths of groups alone have none.
func TestPathsBelongToAPIServices(t *testing.T) {
	names := []string{"v1.", "v1.apps", "v1beta1.things.example.com"}
	for path, want := range map[string]string{
		"/api": "v1.", "/api/": "v1.", "/api/v1": "v1.", "/api/v1/pods": "v1.", "/apix": "",
		"/apis/apps/v1": "v1.apps", "/apis/apps/v1/": "v1.apps", "/apis/apps/v1/deployments/x": "v1.apps", "/apis/apps/v10": "",
		"/apis/things.example.com/v1beta1/x": "v1beta1.things.example.com",
		"/apis":                              "", "/apis/": "", "/apis/apps": "", "/apis/apps/": "", "/apis//v1": "", "/": "", "": "", "/healthz": "",
	} {
		got := ""
		for _, name := range names {
			if key := routeOf(path); key != noRoute && key == route(name) {
				got = name
			}
		}
		if got != want {
			t.Errorf("%q belongs to %q, want %q", path, got, want)
		}
	}
}

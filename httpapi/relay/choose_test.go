package relay

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/registrytest"
)

// newRelay returns a relay that sends its requests by client.
func newRelay(t *testing.T, resources *registry.Registry, client *http.Client) *Relay {
	t.Helper()
	proxy, err := NewProxy(ProxyConfig{Upstream: &rest.Config{Host: "https://upstream"}})
	if err != nil {
		t.Fatal(err)
	}
	return New(Config{
		Registry: resources, Client: client, Upstream: &url.URL{Scheme: "https", Host: "upstream"}, Proxy: proxy, Minor: 36, ServeStale: time.Minute,
		Follows: func(gr schema.GroupResource) bool { return gr.Resource != "secrets" }, MemoryLimit: NewMemoryLimit(0), Logger: slog.New(slog.DiscardHandler),
	})
}

// newRegistry returns the resources of a relay.
func newRegistry(t *testing.T) *registry.Registry {
	return registrytest.New(t, nil, func(c *registry.Config) { c.Served = true }).Registry
}

// roundTrip implements http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (r roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return r(req) }

// TestFirstRequestsWaitForTheVersion checks that requests wait until the upstream has reported its version once.
func TestFirstRequestsWaitForTheVersion(t *testing.T) {
	resources := newRegistry(t)
	var x request.Request
	if err := x.Parse("GET", "/api/v1/pods?resourceVersion=0"); err != nil {
		t.Fatal(err)
	}
	for version, want := range map[string]bool{`{"major": "1", "minor": "36"}`: true, `{"major": "1", "minor": "37"}`: false, "": false} {
		synctest.Test(t, func(t *testing.T) {
			r := newRelay(t, resources, &http.Client{Transport: roundTrip(func(*http.Request) (*http.Response, error) {
				time.Sleep(time.Second)
				return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(version))}, nil
			})})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			began := time.Now()
			go r.keepContact(ctx)
			if got := r.Caches(&x, []byte("application/json"), true); got != want || time.Since(began) != time.Second {
				t.Errorf("version %q: served by a cache: %t, after %v", version, got, time.Since(began))
			}
		})
	}
}

// TestVersionOfEachConnection checks that the relay requests the version again only after the upstream has closed the
// connection.
func TestVersionOfEachConnection(t *testing.T) {
	u := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"major":"1","minor":"36"}`) })
	transport, err := TransportFor(u.config())
	if err != nil {
		t.Fatal(err)
	}
	defer utilnet.CloseIdleConnectionsFor(transport)
	r := newRelay(t, newRegistry(t), &http.Client{Transport: transport})
	if r.config.Upstream, err = url.Parse(u.URL); err != nil {
		t.Fatal(err)
	}
	f := &followed{cancel: func() {}}
	for i, want := range [][]string{{"/pods", "/version"}, {"/pods"}, {"/pods", "/version"}} {
		if i == 2 {
			u.CloseClientConnections()
		}
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, u.URL+"/pods", nil)
		resp, err := versionTransport{r, f, r.config.Client.Transport}.RoundTrip(req)
		for i == 2 && err != nil && t.Context().Err() == nil { // the transport has not seen the end of the connection
			resp, err = versionTransport{r, f, r.config.Client.Transport}.RoundTrip(req)
		}
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		for _, uri := range want {
			if got := <-u.received; got.uri != uri {
				t.Errorf("request %d: %s, want %s", i, got.uri, uri)
			}
		}
		if len(u.received) > 0 {
			t.Errorf("request %d: also %s", i, (<-u.received).uri)
		}
	}
}

func TestReadsThatCachesMayServe(t *testing.T) {
	r := newRelay(t, newRegistry(t), http.DefaultClient)
	close(r.contact.asked)
	caches := func(method, target, accept string) bool {
		t.Helper()
		var q request.Request
		if err := q.Parse(method, target); err != nil {
			t.Fatal(err)
		}
		gvr := schema.GroupVersionResource{Group: q.Group, Version: q.Version, Resource: q.Resource}
		return r.Caches(&q, []byte(accept), r.config.Registry.Endpoint(gvr, "") != nil)
	}
	if age := r.Age(); age != 0 {
		t.Errorf("a new relay has age %v, want 0", age)
	}
	const json, table = "application/json", `application/json;as="Table";v=v1;g=meta.k8s.io`
	if caches("GET", "/api/v1/pods?resourceVersion=0", json) {
		t.Error("a cache serves a read before the upstream's version is known")
	}
	r.contact.last.Store(time.Now().UnixNano())
	const stored = runtime.ContentTypeProtobuf
	for _, on := range []struct {
		minor  int64
		caches bool // Config.CacheNewer
		mixed  bool // servers on a connection
	}{{35, false, false}, {36, true, true}, {37, false, false}, {37, true, false}, {37, true, true}} {
		minor := on.minor
		r.contact.minor.Store(minor)
		r.config.CacheNewer = on.caches
		r.contact.mixed.Store(on.mixed)
		known := minor <= 36 // built-in resources
		bytes := known || on.caches && !on.mixed
		for _, c := range []struct {
			target, accept string
			want           bool
		}{
			{"/api/v1/pods?resourceVersion=0", json, known},
			{"/api/v1/pods?resourceVersion=17&limit=5", json, known},
			{"/api/v1/namespaces/a/pods/x?resourceVersion=0", json, known},
			{"/api/v1/pods?watch=1", json, known},
			{"/api/v1/pods?watch=1", stored, bytes},
			{"/api/v1/namespaces/a/pods/x?resourceVersion=0", stored + ", */*", bytes},
			{"/api/v1/pods?resourceVersion=0", stored + ",application/json", bytes},
			{"/api/v1/pods?resourceVersion=0", stored + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", known},
			{"/api/v1/pods?resourceVersion=0", "application/json," + stored, known},
			{"/api/v1/pods?resourceVersion=0&fieldSelector=status.phase%3DRunning", stored, minor == 36},
			{"/apis/autoscaling/v1/horizontalpodautoscalers?resourceVersion=0", stored, false}, // converted
			{"/api/v1/pods?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", json, known},
			{"/apis/autoscaling/v2/horizontalpodautoscalers?resourceVersion=0", json, known},
			{"/api/v1/pods?resourceVersion=0&fieldSelector=spec.nodeName%3Dn,metadata.namespace%3Da", json, known},
			{"/api/v1/pods?resourceVersion=0&fieldSelector=status.phase%3DRunning", json, minor == 36},
			{"/api/v1/pods?watch=1&fieldSelector=spec.other%3Dx", json, minor == 36}, // refused with the upstream's text
			{"/api/v1/pods?resourceVersion=0&fieldSelector=%3Da", json, false},       // the upstream refuses it
			{"/api/v1/pods?resourceVersion=0&shardSelector=x", json, false},
			{"/api/v1/pods?resourceVersion=0", table, minor == 36},
			{"/apis/example.com/v1/boxes?resourceVersion=0", json, true},
			{"/apis/example.com/v1/boxes?watch=1", table, true},

			{"/api/v1/pods", json, false},
			{"/api/v1/namespaces/a/pods/x", json, false},
			{"/api/v1/pods?resourceVersion=0&continue=x", json, false},
			{"/api/v1/pods?resourceVersion=x", json, false},
			{"/api/v1/pods?resourceVersion=0&limit=x", json, false},
			{"/api/v1/pods?resourceVersion=0", "application/cbor", false},
			{"/api/v1/watch/pods?resourceVersion=0", json, false},
			{"/api/v1/namespaces/a/pods/x/log?resourceVersion=0", json, false},
			{"/api/v1/namespaces/a/pods/x/status?resourceVersion=0", json, false},
			{"/api/v1/secrets?resourceVersion=0", json, false},
			{"/api/v1/events?watch=1", json, false},
			{"/apis/events.k8s.io/v1/events?resourceVersion=0", json, false},
			{"/apis/autoscaling/v1/horizontalpodautoscalers?resourceVersion=0", json, false}, // converted
			{"/apis/example.com/v1/boxes?resourceVersion=0&fieldSelector=spec.color%3Dred", json, false},
			{"/apis/example.com/v1/boxes?resourceVersion=0&fieldSelector=spec.nodeName%3Dn", json, false},
			{"/apis/example.com/v1/boxes?resourceVersion=0&fieldSelector=metadata.name%3Dn", json, true},
			{"/apis/example.com/v1?resourceVersion=0", json, false},
			{"/version", json, false},
		} {
			if got := caches("GET", c.target, c.accept); got != c.want {
				t.Errorf("upstream %+v, %s as %s: served by a cache: %t, want %t", on, c.target, c.accept, got, c.want)
			}
			if caches("HEAD", c.target, c.accept) || caches("POST", c.target, c.accept) {
				t.Errorf("a cache serves HEAD or POST %s", c.target)
			}
		}
	}
	r.contact.minor.Store(36)
	r.config.ConsistentFrom = 500
	for target, want := range map[string]bool{
		"/api/v1/pods": true,
		"/apis/example.com/v1/namespaces/a/boxes":      true,
		"/api/v1/pods?limit=500":                       true,
		"/api/v1/pods?limit=499":                       false,
		"/api/v1/pods?limit=500&continue=x":            false,
		"/api/v1/pods?resourceVersionMatch=Exact":      false, // refused
		"/api/v1/pods?resourceVersion=x":               false,
		"/api/v1/namespaces/a/pods/x":                  false, // costs as much as a proof
		"/apis/example.com/v1/namespaces/a/boxes/name": false,
	} {
		if got := caches("GET", target, json); got != want {
			t.Errorf("consistent lists from caches: %s: served by a cache: %t, want %t", target, got, want)
		}
	}
	r.contact.last.Store(time.Now().Add(-2 * time.Minute).UnixNano())
	if caches("GET", "/api/v1/pods?resourceVersion=0", json) {
		t.Error("a cache serves a read although the upstream has been away for too long")
	}
}

// TestFreshness checks which reads are served by a cache that has all objects of revision 100, and only later events.
func TestFreshness(t *testing.T) {
	resources := newRegistry(t)
	synctest.Test(t, func(t *testing.T) {
		s := start(t, resources, func(c *Config) { c.ConsistentFrom = 1 })
		s.set(func() { s.items["configmaps"] = configMap(t, "x", 95) })
		s.event("customresourcedefinitions", "ADDED", boxCRD(t, 1, 101))
		const list, all = "/api/v1/configmaps?", "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
		check := func(when string, targets map[string]bool) {
			t.Helper()
			for target, want := range targets {
				if got := s.read(t, target) != nil; got != want {
					t.Errorf("%s: %s: served by a cache: %t", when, target, got)
				}
			}
		}
		check("current", map[string]bool{
			list + "resourceVersion=100": true, list + "resourceVersion=101": false,
			list + "resourceVersion=100&resourceVersionMatch=Exact": true, list + "resourceVersion=99&resourceVersionMatch=Exact": false,
			list + "resourceVersion=100&limit=5": true, list + "resourceVersion=99&limit=5": false,
			"/api/v1/namespaces/default/configmaps/x?resourceVersion=100": true, "/api/v1/namespaces/default/configmaps/x?resourceVersion=101": false,
			list + "watch=1&resourceVersion=100": true, list + "watch=1&resourceVersion=99": false, list + "watch=1&resourceVersion=0": true,
			list + "watch=1&resourceVersion=1000":      true, // the upstream may have it
			list + "watch=1&resourceVersion=100" + all: true, list + "watch=1&resourceVersion=101" + all: false,
			list: true, list + "labelSelector=a": false, "/api/v1/namespaces/default/configmaps": true, "/api/v1/namespaces/other/configmaps": false,
			"/api/v1/configmaps/x?resourceVersion=0": false, boxes: true, "/apis/example.com/v1/namespaces/a/boxes?resourceVersion=0": false,
		})
		s.contact.last.Store(time.Now().Add(-time.Minute).UnixNano())
		check("upstream is away", map[string]bool{list + "watch=1&resourceVersion=1000": false, list + "watch=1&resourceVersion=100": true})
		s.set(func() { s.revision = 102 }) // and sends no bookmark
		began := time.Now()
		check("no proof", map[string]bool{list: false})
		check("after that", map[string]bool{list + "watch=1" + all: false})
		if waited := time.Since(began); waited != listFreshTimeout {
			t.Errorf("requests waited for %v, want %v", waited, listFreshTimeout)
		}
	})
}

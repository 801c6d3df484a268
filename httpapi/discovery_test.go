package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	clientset "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	crdinformers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/httpapi/aggregator"
	"github.com/larder-io/larder/httpapi/discovery"
	"github.com/larder-io/larder/internal/proctest"
)

const aggregatedV2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// TestVersionDocuments compares every resource list with the one that upstream's installer computes from the same
// storages.
func TestVersionDocuments(t *testing.T) {
	ours, _ := newLarder(t)
	theirs := newUpstream(t)
	for _, g := range ours.registry.Groups() {
		for _, v := range g.Versions {
			p := path.Join("/", apiRoot(g.Name == ""), g.Name, v.Version)
			for _, accept := range []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "text/plain"} {
				c := call{method: "GET", path: p, header: map[string]string{"Accept": accept}}
				t.Run(strings.TrimPrefix(p, "/")+" "+accept, func(t *testing.T) {
					compare(t, ours.call(t, c), theirs.call(t, c))
				})
			}
		}
	}
}

// TestRoutesOfDocumentsMatchUpstream checks that trailing slashes are ignored, and that a request's Content-Type must
// be one of the document's. Resources that cannot be watched have no watch path.
func TestRoutesOfDocumentsMatchUpstream(t *testing.T) {
	ours, _ := newLarder(t)
	theirs := newUpstream(t)
	var paths []string
	for _, document := range []string{"/api/v1", "/apis/apps", "/apis/apps/v1", "/version"} {
		for _, end := range []string{"//", "///", "/%2F", "//x", "//x//"} {
			paths = append(paths, document+end)
		}
	}
	paths = append(paths, "/api/v1/", "/apis/apps/v1", "/version", "/api/v1/watch/componentstatuses", "/api/v1/watch/componentstatuses/x")
	for _, p := range paths {
		for _, method := range []string{"GET", "POST"} {
			for _, mediaType := range []string{"", "application/json", "application/yaml; charset=utf-8", "text/plain, application/json", "text/plain", "*/*", "Application/JSON"} {
				for _, accept := range []string{"application/json", "text/html"} {
					c := call{method: method, path: p, header: map[string]string{"Accept": accept, "Content-Type": mediaType}}
					t.Run(strings.Join([]string{method, p, mediaType, accept}, " "), func(t *testing.T) {
						compare(t, ours.call(t, c), theirs.call(t, c))
					})
				}
			}
		}
	}
}

func TestGroupDocuments(t *testing.T) {
	s, _ := newLarder(t)
	for _, g := range s.registry.Groups() {
		if g.Name == "" {
			continue
		}
		var got metav1.APIGroup
		decode(t, s.must(t, call{method: "GET", path: "/apis/" + g.Name}).body, &got)
		want := discovery.Group(g)
		if got.Kind != "APIGroup" || got.Name != g.Name || got.PreferredVersion != want.PreferredVersion || !slices.Equal(got.Versions, want.Versions) || len(got.ServerAddressByClientCIDRs) > 0 {
			t.Errorf("%s: got %+v, want %+v", g.Name, got, want)
		}
	}
	var legacy metav1.APIVersions
	decode(t, s.must(t, call{method: "GET", path: "/api"}).body, &legacy)
	if !slices.Equal(legacy.Versions, []string{"v1"}) || len(legacy.ServerAddressByClientCIDRs) != 1 || legacy.APIVersion != "" {
		t.Errorf("/api: got %+v", legacy)
	}
}

func TestAggregatedDiscovery(t *testing.T) {
	s, _ := newLarder(t)
	for _, p := range []string{"/api", "/apis"} {
		a := s.must(t, call{method: "GET", path: p, header: map[string]string{"Accept": aggregatedV2 + ",application/json"}})
		if got := a.header.Get("Content-Type"); got != aggregatedV2 {
			t.Errorf("%s: Content-Type %q", p, got)
		}
		var list apidiscoveryv2.APIGroupDiscoveryList
		decode(t, a.body, &list)
		checkAggregated(t, s, p, &list)

		tag := a.header.Get("ETag")
		again := s.call(t, call{method: "GET", path: p, header: map[string]string{"Accept": aggregatedV2, "If-None-Match": tag}})
		if tag == "" || again.code != http.StatusNotModified || len(again.body) > 0 {
			t.Errorf("%s: got status %d with ETag %q, want 304: %s", p, again.code, tag, again.body)
		}
	}
}

// checkAggregated compares an aggregated document with the plain ones.
func checkAggregated(t *testing.T, s *side, p string, list *apidiscoveryv2.APIGroupDiscoveryList) {
	t.Helper()
	var names []string
	for _, g := range list.Items {
		for _, v := range g.Versions {
			names = append(names, g.Name+"/"+v.Version)
		}
	}
	// As a default kube-apiserver lists them.
	want := []string{
		"apiregistration.k8s.io/v1", "apps/v1", "events.k8s.io/v1", "authentication.k8s.io/v1", "authorization.k8s.io/v1",
		"autoscaling/v2", "autoscaling/v1", "batch/v1", "certificates.k8s.io/v1", "networking.k8s.io/v1", "policy/v1",
		"rbac.authorization.k8s.io/v1", "storage.k8s.io/v1", "admissionregistration.k8s.io/v1", "apiextensions.k8s.io/v1",
		"scheduling.k8s.io/v1", "coordination.k8s.io/v1", "node.k8s.io/v1", "discovery.k8s.io/v1", "resource.k8s.io/v1",
		"flowcontrol.apiserver.k8s.io/v1",
	}
	if p == "/apis" && !slices.Equal(names, want) {
		t.Errorf("versions:\ngot  %q\nwant %q", names, want)
	}
	for _, g := range list.Items {
		for _, v := range g.Versions {
			var plain metav1.APIResourceList
			decode(t, s.must(t, call{method: "GET", path: path.Join(p, g.Name, v.Version)}).body, &plain)
			n := 0
			for _, r := range v.Resources {
				n += 1 + len(r.Subresources)
			}
			// A subresource without a resource brings that along.
			if n < len(plain.APIResources) {
				t.Errorf("%s/%s: got %d resources, want the %d of the plain document", g.Name, v.Version, n, len(plain.APIResources))
			}
		}
	}
}

// withAggregator returns a change of a Config that adds an Aggregator without remote servers, which does not run.
func withAggregator(t *testing.T) func(*Config) {
	return func(config *Config) {
		unused := &rest.Config{Host: "https://unused.invalid"}
		client, crdClient := kubernetes.NewForConfigOrDie(unused), clientset.NewForConfigOrDie(unused)
		var err error
		config.Aggregator, err = aggregator.New(aggregator.Config{
			Registry: config.Registry, ClientConfig: unused, Client: client,
			Services:  informers.NewSharedInformerFactory(client, 0).Core().V1().Services(),
			CRDs:      crdinformers.NewSharedInformerFactory(crdClient, 0).Apiextensions().V1().CustomResourceDefinitions(),
			Discovery: aggregated.NewResourceManager("apis"),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestVersionAndIndex(t *testing.T) {
	s, _ := newLarder(t, withAggregator(t))
	a := s.must(t, call{method: "GET", path: "/version"})
	var info map[string]string
	decode(t, a.body, &info)
	if info["gitVersion"] != "v1.36.3" || info["major"] != "1" || info["minor"] != "36" || a.header.Get("Content-Type") != "application/json" {
		t.Errorf("/version: got %s", a.body)
	}
	var index metav1.RootPaths
	decode(t, s.must(t, call{method: "GET", path: "/"}).body, &index)
	for _, want := range []string{"/api", "/api/v1", "/apis", "/apis/", "/apis/apps", "/apis/apps/v1", "/healthz", "/healthz/ping", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version"} {
		if !slices.Contains(index.Paths, want) {
			t.Errorf("index lacks %s", want)
		}
	}
	if !slices.IsSorted(index.Paths) {
		t.Errorf("index is not sorted: %q", index.Paths)
	}
}

func TestHealth(t *testing.T) {
	s, _ := newLarder(t)
	tests := []struct {
		path string
		code int
		body string
	}{
		{"/healthz", 200, "ok"},
		{"/livez", 200, "ok"},
		{"/readyz", 200, "ok"},
		{"/readyz/ping", 200, "ok"},
		{"/livez?verbose", 200, "[+]ping ok\n[+]log ok\nlivez check passed\n"},
		{"/livez?verbose&exclude=log", 200, "[+]ping ok\n[+]log excluded: ok\nlivez check passed\n"},
		{"/livez?verbose&exclude=nothing", 200, "[+]ping ok\n[+]log ok\nwarn: some health checks cannot be excluded: no matches for \"nothing\"\nlivez check passed\n"},
		{"/readyz?verbose", 200, "[+]ping ok\n[+]log ok\n[+]shutdown ok\nreadyz check passed\n"},
		{"/readyz/nothing", 404, "404 page not found\n"},
	}
	for _, tt := range tests {
		if a := s.call(t, call{method: "GET", path: tt.path}); a.code != tt.code || string(a.body) != tt.body {
			t.Errorf("%s: %d %q, want %d %q", tt.path, a.code, a.body, tt.code, tt.body)
		}
	}
}

// TestMetricsOfRequests checks that /metrics has samples of the requests, the cache, the store and the process.
func TestMetricsOfRequests(t *testing.T) {
	s, _ := newLarder(t)
	s.must(t, call{method: "POST", path: "/api/v1/namespaces/default/configmaps", body: `{"metadata":{"name":"a"}}`})
	s.must(t, call{method: "DELETE", path: "/api/v1/namespaces/default/configmaps"})
	all := []string{
		`apiserver_request_total{code="201",component="apiserver",dry_run="",group="",resource="configmaps",scope="resource",subresource="",verb="POST",version="v1"}`,
		`apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="configmaps",scope="namespace",subresource="",verb="DELETE",version="v1"}`,
		`apiserver_request_duration_seconds_bucket{`,
		`apiserver_request_sli_duration_seconds_bucket{`,
		`apiserver_storage_objects{resource="configmaps"}`,
		`larder_cache_bytes{group="",of="canonical",resource="configmaps"}`,
		`larder_cache_dropped_total{group="",of="encodings",resource="configmaps"} 0`,
		`larder_cache_budget_limit_bytes{budget="shared",of="encodings"}`,
		`larder_cache_budget_used_bytes{budget="shared",of="all"}`,
		`apiserver_resource_size_estimate_bytes{group="",resource="configmaps"}`,
		`apiserver_storage_events_received_total{group="",resource="configmaps"} 2`,
		`apiserver_storage_consistency_checks_total{group="",resource="configmaps",status="success"} 0`,
		`larder_watchers{group="apps",resource="deployments"} 0`,
		`kubernetes_build_info{build_date="",compiler="",git_commit="",git_tree_state="clean",git_version="v1.36.3",go_version="",major="1",minor="36",platform="linux/amd64"} 1`,
		`process_resident_memory_bytes`,
	}
	// Watches, and so their hub, receive the deletion some time after its response.
	proctest.Eventually(t, "the metrics contain all samples", func() error {
		text := string(s.must(t, call{method: "GET", path: "/metrics"}).body)
		if at := slices.IndexFunc(all, func(want string) bool { return !strings.Contains(text, want) }); at >= 0 {
			return fmt.Errorf("no %s", all[at])
		}
		return nil
	})
}

func TestProfiling(t *testing.T) {
	s, _ := newLarder(t)
	a := s.must(t, call{method: "GET", path: "/debug/pprof/goroutine?debug=1"})
	if !strings.HasPrefix(string(a.body), "goroutine profile:") {
		t.Errorf("got %.80q, want a goroutine profile", a.body)
	}
}

func decode(t testing.TB, body []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(body, into); err != nil {
		t.Fatalf("%v in %.200s", err, body)
	}
}

// TestGroupDocumentsConcurrently checks that requests do not share an encoded document: encoding sets its kind and
// resets it afterwards. The race detector finds sharing more reliably than the comparison.
func TestGroupDocumentsConcurrently(t *testing.T) {
	s, _ := newLarder(t, withAggregator(t))
	paths := []string{"/apis", "/apis/apps", "/apis/apps/v1", "/api", "/api/v1", "/version"}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 60 {
				p := paths[i%len(paths)]
				a := s.call(t, call{method: "GET", path: p})
				if a.code != http.StatusOK || p != "/version" && !strings.Contains(string(a.body), `"kind":"API`) {
					t.Errorf("%s: got status %d and %s", p, a.code, a.body)
				}
			}
		})
	}
	wg.Wait()
}

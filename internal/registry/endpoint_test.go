package registry_test

import (
	"encoding/json"
	"net/http/httptest"
	"path"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	printerstorage "k8s.io/kubernetes/pkg/printers/storage"

	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/builtin"
	"github.com/larder-io/larder/internal/registry/registrytest"
)

// everything enables all versions that upstream has, alpha and beta too.
func everything(c *registry.Config) {
	all := builtin.DefaultAPIResources()
	all.EnableMatchingVersions(func(schema.GroupVersion) bool { return true })
	c.APIResources = all
}

// TestDiscoveryMatchesUpstream compares the discovery data of endpoints with those that upstream's installer derives
// from the same storages.
func TestDiscoveryMatchesUpstream(t *testing.T) {
	for name, change := range map[string]func(*registry.Config){
		"default":    func(*registry.Config) {},
		"everything": everything,
	} {
		t.Run(name, func(t *testing.T) {
			r := registrytest.New(t, nil, change).Registry
			container, err := registrytest.Install(r)
			if err != nil {
				t.Fatal(err)
			}
			for _, group := range r.Groups() {
				for _, version := range group.Versions {
					root := "/apis"
					if group.Name == "" {
						root = "/api"
					}
					recorder := httptest.NewRecorder()
					req := httptest.NewRequest("GET", path.Join(root, group.Name, version.Version), nil)
					container.ServeHTTP(recorder, req)
					var want metav1.APIResourceList
					if err := json.Unmarshal(recorder.Body.Bytes(), &want); err != nil {
						t.Fatalf("%s: %v: %s", version, err, recorder.Body)
					}
					var got []metav1.APIResource
					for _, e := range version.Endpoints {
						got = append(got, e.Discovery())
					}
					if diff := cmp.Diff(want.APIResources, got); diff != "" {
						t.Errorf("%s: -upstream +ours\n%s", version, diff)
					}
				}
			}
		})
	}
}

// TestDefaultVersionsMatchUpstream names the versions served by default, in upstream's order.
func TestDefaultVersionsMatchUpstream(t *testing.T) {
	var got []string
	for _, group := range registrytest.New(t, nil).Registry.Groups() {
		for _, version := range group.Versions {
			got = append(got, version.String())
		}
	}
	want := []string{
		"v1", "authentication.k8s.io/v1", "authorization.k8s.io/v1", "autoscaling/v2", "autoscaling/v1", "batch/v1",
		"certificates.k8s.io/v1", "coordination.k8s.io/v1", "discovery.k8s.io/v1", "networking.k8s.io/v1", "node.k8s.io/v1",
		"policy/v1", "rbac.authorization.k8s.io/v1", "scheduling.k8s.io/v1", "storage.k8s.io/v1",
		"flowcontrol.apiserver.k8s.io/v1", "apps/v1", "admissionregistration.k8s.io/v1", "events.k8s.io/v1", "resource.k8s.io/v1",
		"apiextensions.k8s.io/v1", "apiregistration.k8s.io/v1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// TestGroupsOfWhichNothingIsServedAreDropped disables all versions of groups, including those of kube-apiserver's
// other servers.
func TestGroupsOfWhichNothingIsServedAreDropped(t *testing.T) {
	s := registrytest.New(t, nil, func(c *registry.Config) {
		c.APIResources = serverstorage.NewResourceConfig()
		c.APIResources.EnableVersions(schema.GroupVersion{Group: "apps", Version: "v1"})
		c.APIResources.DisableResources(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"})
	})
	groups := s.Registry.Groups()
	if len(groups) != 1 || groups[0].Name != "apps" {
		t.Fatalf("groups: %v", groups)
	}
	for _, e := range groups[0].Versions[0].Endpoints {
		if e.GVR.Resource == "daemonsets" {
			t.Errorf("%s is served", e.Name())
		}
	}
}

// TestPrintersAreShared checks that storages share the printers of all built-in types, except those that hide them.
func TestPrintersAreShared(t *testing.T) {
	printers := make(map[uintptr][]string)
	for _, group := range registrytest.New(t, nil, everything).Registry.Groups() {
		for _, version := range group.Versions {
			for _, e := range version.Endpoints {
				storage := reflect.Indirect(reflect.ValueOf(e.Storage))
				for _, field := range []string{"Store", "store"} {
					store := reflect.Value{}
					if storage.Kind() == reflect.Struct {
						store = storage.FieldByName(field)
					}
					if !store.IsValid() || store.Type() != reflect.TypeFor[*genericregistry.Store]() {
						continue
					}
					if convertor := store.Elem().FieldByName("TableConvertor").Elem(); convertor.Type() == reflect.TypeFor[printerstorage.TableConvertor]() {
						own := convertor.Field(0).Elem().Pointer()
						printers[own] = append(printers[own], e.Name())
					}
				}
			}
		}
	}
	if len(printers) != 1 {
		t.Errorf("%d copies: %v", len(printers), printers)
	}
}

// TestEverythingStoredIsServedFromItsCache checks that every stored resource is served from its cache, and that a
// resource of several groups or versions is stored once.
func TestEverythingStoredIsServedFromItsCache(t *testing.T) {
	r := registrytest.New(t, nil, everything).Registry
	resources := make(map[*registry.Resource][]string)
	for _, group := range r.Groups() {
		for _, version := range group.Versions {
			for _, e := range version.Endpoints {
				_, watched := e.Storage.(rest.Watcher)
				if stored := watched && e.Subresource == ""; stored != (e.View != nil) {
					t.Errorf("%s %s: stored %v, has a view %v", version, e.Name(), stored, e.View != nil)
				}
				if e.View != nil {
					resources[e.View.Resource] = append(resources[e.View.Resource], e.GVR.String())
				}
				if found := r.Endpoint(e.GVR, e.Subresource); found != e {
					t.Errorf("Endpoint(%s, %q) = %v", e.GVR, e.Subresource, found)
				}
				if (e.Parent == nil) != (e.Subresource == "") {
					t.Errorf("%s %s: parent %v", version, e.Name(), e.Parent)
				}
			}
		}
	}
	if len(resources) != len(r.Resources()) {
		t.Errorf("%d resources are served, %d are kept", len(resources), len(r.Resources()))
	}
	events := r.Endpoint(schema.GroupVersionResource{Version: "v1", Resource: "events"}, "")
	if served := resources[events.View.Resource]; len(served) != 2 {
		t.Errorf("events are served as %v", served)
	}
	if e := r.Endpoint(schema.GroupVersionResource{Version: "v1", Resource: "nothing"}, ""); e != nil {
		t.Errorf("found %v", e)
	}
}

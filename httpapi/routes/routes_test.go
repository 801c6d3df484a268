package routes

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/openapi"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry/registrytest"
)

func TestMain(m *testing.M) { proctest.Main(m) }

func TestEveryEndpointIsInstalled(t *testing.T) {
	r := registrytest.New(t, nil).Registry
	groups := r.Groups()
	table := New()
	in := &Installer{Monitors: new(apimetrics.Resources), Version: &version.Info{Major: "1", Minor: "36", GitVersion: "v1.36.3"}, MaxBodyBytes: 3 << 20, MinRequestTimeout: time.Minute, Models: openapi.NewModels(), Equivalents: r.Equivalents()}
	if err := in.Install(table, groups); err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		for _, v := range g.Versions {
			for _, e := range v.Endpoints {
				i := table.resources[resourceKey{e.GVR.Group, e.GVR.Version, e.GVR.Resource, e.Subresource}]
				if i == nil {
					t.Errorf("%s %s is not installed", v, e.Name())
					continue
				}
				for _, verb := range e.Verbs {
					if !i.serves(verb) && i.connect[methodOf(verb)] == nil {
						t.Errorf("%s %s: no handler for %s", v, e.Name(), verb)
					}
				}
				if _, connects := e.Storage.(rest.Connecter); connects != (len(i.connect) > 0) {
					t.Errorf("%s %s: connects by %v, handlers for %d methods", v, e.Name(), connects, len(i.connect))
				}
			}
		}
	}
}

func methodOf(verb string) string {
	switch verb {
	case "create":
		return http.MethodPost
	case "update":
		return http.MethodPut
	case "patch":
		return http.MethodPatch
	case "delete", "deletecollection":
		return http.MethodDelete
	default:
		return http.MethodGet
	}
}

func TestTablePrefersTheMorePrecisePath(t *testing.T) {
	routes := New()
	named := func(name string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Name", name) })
	}
	routes.HandlePrefix("/a/", named("short"))
	routes.HandlePrefix("/a/b/", named("long"))
	routes.Handle("/a/b/", named("exact"))
	for path, want := range map[string]string{"/a/": "short", "/a/x": "short", "/a/b/c": "long", "/a/b/": "exact", "/a": "", "/ab/": ""} {
		h, ok := routes.NonResource(path)
		if ok != (want != "") {
			t.Errorf("%s: found %v", path, ok)
		}
		if !ok {
			continue
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if got := w.Header().Get("Name"); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}
